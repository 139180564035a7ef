"""Private servers: started for as long as they are needed, and removed with whoever started them."""
