"""What will it cost? Pure functions of shapes and profiles."""
