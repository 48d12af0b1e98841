"""`python -m kafkagroup`: the command line."""

from kafkagroup.cli import main

if __name__ == "__main__":
    main()
