"""A decoder of four layers whose products, attention and loss are the library's: trained, served, and shared by two devices."""
