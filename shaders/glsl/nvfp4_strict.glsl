// Shared parts of the strict NVFP4 kernels (docs/nvfp4.md, "The strict sum").
//
// A team of 32 lanes makes sums. Lane l takes blocks l, l + 32, ... of 16 columns: in a block the
// products of activation and code are added in order from +0, then the block's sum is multiplied
// by its scale and added to the lane's sum, from +0. The sums of the lanes are added in halves:
// lanes l and l + 16, then l and l + 8, 4, 2, 1. No step depends on how many rows, tokens or
// invocations work side by side, so all strict kernels give the same bits.

const uint LANES = 32u;
const uint SILU = 1u;
const uint SIGMOID = 2u;
const uint SQUARED_RELU = 3u;
const uint HAS_BIAS = 1u;
const uint HAS_RESIDUAL = 2u;

// The value of the E2M1 code in the low four bits.
float code_value(uint code) {
    uint size = code & 7u;
    uint bits = size < 2u ? size * 0x3F000000u : (size << 22) + 0x3F000000u;
    return uintBitsToFloat(bits | ((code & 8u) << 28));
}

// The value of an E4M3 code; NaN for 0x7F and 0xFF.
float scale_value(uint code) {
    uint size = code & 0x7Fu;
    precise float low = float(size) * 0.001953125;
    uint bits = size < 8u ? floatBitsToUint(low) : (size << 20) + 0x3C000000u;
    if (size == 0x7Fu) bits = NAN_BITS;
    return uintBitsToFloat(bits | ((code & 0x80u) << 24));
}

// What is done to a finished sum: tensor scale, bias, activation, residual.
float finished(float sum, float scale, uint extras, float bias, float residual) {
    precise float v = sum * scale;
    if ((extras & HAS_BIAS) != 0u) v = v + bias;
    if (ACTIVATION == SILU) {
        float slope = strict_sigmoid(v);
        // Not -inf * 0.
        if (floatBitsToUint(v) == 0xFF800000u) v = uintBitsToFloat(SIGN_BIT);
        else v = v * slope;
    } else if (ACTIVATION == SIGMOID) {
        v = strict_sigmoid(v);
    } else if (ACTIVATION == SQUARED_RELU) {
        if (!is_nan(v)) {
            if (floatBitsToUint(v) >= SIGN_BIT) v = 0.0;
            v = v * v;
        }
    }
    if ((extras & HAS_RESIDUAL) != 0u) v = v + residual;
    return is_nan(v) ? uintBitsToFloat(NAN_BITS) : v;
}
