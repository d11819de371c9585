"""Passes that return whether they changed a program, as client code of torch.fx writes and schedules them."""
