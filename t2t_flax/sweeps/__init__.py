"""Many runs of one config: what varies, who trains what, and the table at the end."""
