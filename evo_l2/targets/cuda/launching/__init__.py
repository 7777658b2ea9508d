"""What a launch of a built kernel needs and may use: its plan, how much of a card it takes, and its measures."""
