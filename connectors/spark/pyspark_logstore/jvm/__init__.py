"""What the reader in Java (connectors/spark/java) asks for: plans, and all that it does
not decide itself."""
