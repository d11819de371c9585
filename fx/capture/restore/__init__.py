"""What a capture touches is as before when it ends: recorded, put back, and searched for traced values."""
