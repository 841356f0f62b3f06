"""`python -m hooklens`."""

from hooklens.cli import main

if __name__ == "__main__":
    main()
