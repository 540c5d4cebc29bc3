"""The stages of Caravan: each module is one step from raw text to a scored model."""
