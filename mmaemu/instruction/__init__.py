"""The arithmetic of one tensor-core instruction: models as data, the readable step, the chain."""
