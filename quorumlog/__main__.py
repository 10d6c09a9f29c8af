"""`python -m quorumlog`: the command line."""

from quorumlog.cli.main import main

if __name__ == "__main__":
    main()
