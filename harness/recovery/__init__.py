"""What happens when ranks die."""
