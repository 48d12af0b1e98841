"""Group membership in ZooKeeper. Needs `kafkagroup[zookeeper]`."""
