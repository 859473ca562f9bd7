"""Constants of devices whose kernels nobody tabulated: published figures of single kernels, and serving rows."""
