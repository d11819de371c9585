"""Passes that return whether they changed a program, and their managers, with torch.fx's interface."""
