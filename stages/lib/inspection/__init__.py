"""What a person looks at before and after text becomes tokens."""
