"""The words that cross the wall between an analyst and an owner: questions, answers, frames. Nothing here computes."""
