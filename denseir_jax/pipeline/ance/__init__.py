"""ANCE (Xiong et al. 2021): a trainer and an inferencer that give each other checkpoints and training sets through one folder."""
