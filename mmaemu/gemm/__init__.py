"""What cuBLAS builds from one instruction: plans, the non-finite rule and the epilogue."""
