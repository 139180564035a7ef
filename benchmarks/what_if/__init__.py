"""What `predict --what-if` says, beside what a server does when the load is really changed."""
