"""What was built, read: machine code, PTX and ELF, the gates on them, resources and measures."""
