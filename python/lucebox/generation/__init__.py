"""From requests to tokens: the loaded model, its sessions, and the loop that runs requests on them."""
