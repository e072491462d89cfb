"""The cartpole: a latent space of action sequences, learned through the controller (Section 5.2.1)."""
