"""An archive kept whole: checked, merged, shared among workers, judged again, and rid of what nothing refers to."""
