"""What can be typed? One file per command group; each is imported only when it is asked for."""

def main() -> None:
    raise SystemExit("not yet")
