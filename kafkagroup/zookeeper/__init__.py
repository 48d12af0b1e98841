"""Groups whose members are kept in ZooKeeper. Needs `kafkagroup[zookeeper]`."""
