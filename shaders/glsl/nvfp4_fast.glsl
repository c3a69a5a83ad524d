// The end of the fast NVFP4 kernels: tensor scale and activation, in FP32.

float activated(float v, uint activation) {
    if (activation == NVFP4_SILU) return v / (1.0 + exp(-v));
    if (activation == NVFP4_SIGMOID) return 1.0 / (1.0 + exp(-v));
    if (activation == NVFP4_SQUARED_RELU) {
        // Not max(): it may drop a NaN.
        float positive = v < 0.0 ? 0.0 : v;
        return positive * positive;
    }
    return v;
}
