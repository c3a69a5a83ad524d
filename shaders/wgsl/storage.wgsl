// Element storage, the WGSL twin of glsl/storage.glsl with its own text: lanes of 32-bit words and
// conversions of the narrow floats. Nothing here does float arithmetic, because a device may flush
// FP32 subnormals. `dtype` is an override in every kernel, so the switches fold.

const BOOL: u32 = 1u;
const INT4: u32 = 2u;
const INT8: u32 = 3u;
const INT16: u32 = 4u;
const INT32: u32 = 5u;
const INT48: u32 = 6u;
const FP32: u32 = 7u;
const FP16: u32 = 8u;
const BF16: u32 = 9u;
const SHAPE: u32 = 10u;
const FP8E4M3: u32 = 11u;
const FP8E5M2: u32 = 12u;

fn is_float(dtype: u32) -> bool {
    switch (dtype) {
        case 7u, 8u, 9u, 11u, 12u: { return true; }
        default: { return false; }
    }
}

// Elements per word.
fn lanes_of(dtype: u32) -> u32 {
    switch (dtype) {
        case 2u: { return 8u; }
        case 1u, 3u, 11u, 12u: { return 4u; }
        case 4u, 8u, 9u: { return 2u; }
        default: { return 1u; }
    }
}

fn lane_mask(dtype: u32) -> u32 {
    switch (lanes_of(dtype)) {
        case 8u: { return 0xfu; }
        case 4u: { return 0xffu; }
        case 2u: { return 0xffffu; }
        default: { return 0xffffffffu; }
    }
}

// How far the lane of element `index` is shifted in its word.
fn lane_shift(dtype: u32, index: u32) -> u32 {
    let lanes = lanes_of(dtype);
    return (index & (lanes - 1u)) * (32u / lanes);
}

fn lane_bits(word: u32, dtype: u32, index: u32) -> u32 {
    return (word >> lane_shift(dtype, index)) & lane_mask(dtype);
}

fn place(dtype: u32, lane: u32, index: u32) -> u32 { return lane << lane_shift(dtype, index); }

// ---------------------------------------------------------------- narrow floats

// FP32 bits of a small integer times 2^-scale: the integer is a normal float, and the power of
// two is taken off its exponent field.
fn scaled_integer(value: u32, scale: u32) -> u32 {
    if (value == 0u) { return 0u; }
    return bitcast<u32>(f32(value)) - (scale << 23u);
}

// value / 2^count to nearest even; 0 when count leaves nothing of a 24-bit value.
fn nearest_shift(value: u32, count: u32) -> u32 {
    if (count > 24u) { return 0u; }
    let odd = (value >> count) & 1u;
    return (value + (1u << (count - 1u)) - 1u + odd) >> count;
}

// The 24-bit significand of an FP32 magnitude (an FP32 subnormal is below every narrow format
// that needs this, so the wrong hidden bit there is shifted out).
fn significand(magnitude: u32) -> u32 { return (magnitude & 0x007fffffu) | 0x00800000u; }

fn half_to_float(bits: u32) -> f32 {
    let sign = (bits & 0x8000u) << 16u;
    let exponent = (bits >> 10u) & 31u;
    let fraction = bits & 0x3ffu;
    var wide = ((exponent + 112u) << 23u) | (fraction << 13u);
    if (exponent == 0u) { wide = scaled_integer(fraction, 24u); }
    if (exponent == 31u) { wide = 0x7f800000u | (fraction << 13u); }
    return bitcast<f32>(sign | wide);
}

fn float_to_half(v: f32) -> u32 {
    let bits = bitcast<u32>(v);
    let sign = (bits & 0x80000000u) >> 16u;
    let magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) { return sign | 0x7e00u; }
    if (magnitude >= 0x477ff000u) { return sign | 0x7c00u; }
    if (magnitude >= 0x38800000u) { return sign | nearest_shift(magnitude - 0x38000000u, 13u); }
    return sign | nearest_shift(significand(magnitude), 126u - (magnitude >> 23u));
}

fn bfloat_to_float(bits: u32) -> f32 { return bitcast<f32>(bits << 16u); }

fn float_to_bfloat(v: f32) -> u32 {
    let bits = bitcast<u32>(v);
    let top = bits >> 16u;
    if ((bits & 0x7fffffffu) > 0x7f800000u) { return (top & 0x8000u) | 0x7fc0u; }
    let rest = bits & 0xffffu;
    let up = rest > 0x8000u || (rest == 0x8000u && (top & 1u) == 1u);
    return top + select(0u, 1u, up);
}

fn e4m3_to_float(bits: u32) -> f32 {
    let sign = (bits & 0x80u) << 24u;
    let magnitude = bits & 0x7fu;
    var wide = (magnitude << 20u) + 0x3c000000u;
    if (magnitude < 8u) { wide = scaled_integer(magnitude, 9u); }
    if (magnitude == 0x7fu) { wide = 0x7fc00000u; }
    return bitcast<f32>(sign | wide);
}

// Above 464 (the tie to 448) there is only NaN.
fn float_to_e4m3(v: f32) -> u32 {
    let bits = bitcast<u32>(v);
    let sign = (bits & 0x80000000u) >> 24u;
    let magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x43e80000u) { return sign | 0x7fu; }
    if (magnitude >= 0x3c800000u) { return sign | nearest_shift(magnitude - 0x3c000000u, 20u); }
    return sign | nearest_shift(significand(magnitude), 141u - (magnitude >> 23u));
}

fn e5m2_to_float(bits: u32) -> f32 {
    let sign = (bits & 0x80u) << 24u;
    let magnitude = bits & 0x7fu;
    var wide = (magnitude << 21u) + 0x38000000u;
    if (magnitude < 4u) { wide = scaled_integer(magnitude, 16u); }
    if (magnitude >= 0x7cu) { wide = 0x7f800000u | ((magnitude & 3u) << 21u); }
    return bitcast<f32>(sign | wide);
}

fn float_to_e5m2(v: f32) -> u32 {
    let bits = bitcast<u32>(v);
    let sign = (bits & 0x80000000u) >> 24u;
    let magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) { return sign | 0x7eu; }
    if (magnitude >= 0x47700000u) { return sign | 0x7cu; }
    if (magnitude >= 0x38800000u) { return sign | nearest_shift(magnitude - 0x38000000u, 21u); }
    return sign | nearest_shift(significand(magnitude), 134u - (magnitude >> 23u));
}

// ---------------------------------------------------------------- lanes as values

fn widen(dtype: u32, lane: u32) -> f32 {
    switch (dtype) {
        case 8u: { return half_to_float(lane); }
        case 9u: { return bfloat_to_float(lane); }
        case 11u: { return e4m3_to_float(lane); }
        case 12u: { return e5m2_to_float(lane); }
        default: { return bitcast<f32>(lane); }
    }
}

fn narrow(dtype: u32, v: f32) -> u32 {
    switch (dtype) {
        case 8u: { return float_to_half(v); }
        case 9u: { return float_to_bfloat(v); }
        case 11u: { return float_to_e4m3(v); }
        case 12u: { return float_to_e5m2(v); }
        default: { return bitcast<u32>(v); }
    }
}

fn widen_int(dtype: u32, lane: u32) -> i32 {
    switch (dtype) {
        case 1u: { return select(0, 1, lane != 0u); }
        case 2u: { return bitcast<i32>(lane << 28u) >> 28u; }
        case 3u: { return bitcast<i32>(lane << 24u) >> 24u; }
        case 4u: { return bitcast<i32>(lane << 16u) >> 16u; }
        default: { return bitcast<i32>(lane); }
    }
}

fn narrow_int(dtype: u32, v: i32) -> u32 {
    if (dtype == BOOL) { return select(0u, 1u, v != 0); }
    return bitcast<u32>(v) & lane_mask(dtype);
}
