// Element storage: TOSA data types as lanes of 32-bit words, and the conversions between the
// narrow float formats and FP32. Integer code throughout: some devices flush FP32 subnormals, and
// those conversions must be exact (widening) or rounded to nearest even (narrowing) everywhere.
// A kernel's data type is a specialization constant, so the branches on it fold away.

const uint BOOL = 1u;
const uint INT4 = 2u;
const uint INT8 = 3u;
const uint INT16 = 4u;
const uint INT32 = 5u;
const uint INT48 = 6u;
const uint FP32 = 7u;
const uint FP16 = 8u;
const uint BF16 = 9u;
const uint SHAPE = 10u;
const uint FP8E4M3 = 11u;
const uint FP8E5M2 = 12u;

bool is_float(uint dtype) { return (dtype >= FP32 && dtype <= BF16) || dtype == FP8E4M3 || dtype == FP8E5M2; }

uint lane_width(uint dtype) {
    if (dtype == INT4) return 4u;
    if (dtype == BOOL || dtype == INT8 || dtype == FP8E4M3 || dtype == FP8E5M2) return 8u;
    if (dtype == INT16 || dtype == FP16 || dtype == BF16) return 16u;
    return 32u;
}

// Elements per word.
uint lanes_of(uint dtype) { return 32u / lane_width(dtype); }

uint lane_mask(uint dtype) { return 0xFFFFFFFFu >> (32u - lane_width(dtype)); }

// The raw lane of element `index`, whose word is `word`.
uint lane_bits(uint word, uint dtype, uint index) {
    return (word >> ((index % lanes_of(dtype)) * lane_width(dtype))) & lane_mask(dtype);
}

uint place(uint dtype, uint lane, uint index) {
    return lane << ((index % lanes_of(dtype)) * lane_width(dtype));
}

// ---------------------------------------------------------------- narrow floats

// FP32 bits of a magnitude with `fraction` fraction bits and exponent bias `bias`, not inf or NaN.
uint widened(uint magnitude, int fraction, int bias) {
    if ((magnitude >> uint(fraction)) != 0u) {
        return (magnitude << uint(23 - fraction)) + (uint(127 - bias) << 23);
    }
    if (magnitude == 0u) return 0u;
    int top = findMSB(magnitude);
    uint field = uint(top + 128 - bias - fraction);
    return (field << 23) | ((magnitude << uint(23 - top)) & 0x007FFFFFu);
}

// The narrow magnitude nearest to an FP32 magnitude. The exponent may run past the format's range:
// the caller turns what is too large into infinity or NaN.
uint narrowed(uint magnitude, int fraction, int bias) {
    uint cut = uint(23 - fraction);
    uint kept = magnitude - (uint(127 - bias) << 23);
    if (magnitude < (uint(128 - bias) << 23)) {
        // Subnormal there: the significand in units of its last place.
        cut = uint(151 - bias - fraction) - (magnitude >> 23);
        if (cut > 24u) return 0u;
        kept = (magnitude & 0x007FFFFFu) | 0x00800000u;
    }
    uint result = kept >> cut;
    uint rest = kept - (result << cut);
    uint tie = 1u << (cut - 1u);
    return (rest > tie || (rest == tie && (result & 1u) != 0u)) ? result + 1u : result;
}

float half_to_float(uint bits) {
    uint magnitude = bits & 0x7FFFu;
    uint wide = magnitude >= 0x7C00u ? 0x7F800000u | ((magnitude & 0x3FFu) << 13) : widened(magnitude, 10, 15);
    return uintBitsToFloat(((bits & 0x8000u) << 16) | wide);
}

uint float_to_half(float v) {
    uint bits = floatBitsToUint(v);
    uint sign = (bits >> 16) & 0x8000u;
    uint magnitude = bits & 0x7FFFFFFFu;
    if (magnitude > 0x7F800000u) return sign | 0x7E00u;
    return sign | min(narrowed(magnitude, 10, 15), 0x7C00u);
}

float bfloat_to_float(uint bits) { return uintBitsToFloat(bits << 16); }

uint float_to_bfloat(float v) {
    uint bits = floatBitsToUint(v);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return ((bits >> 16) & 0x8000u) | 0x7FC0u;
    return (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
}

// E4M3 has no infinity; 0x7F is its only NaN.
float e4m3_to_float(uint bits) {
    uint magnitude = bits & 0x7Fu;
    uint wide = magnitude == 0x7Fu ? 0x7FC00000u : widened(magnitude, 3, 7);
    return uintBitsToFloat(((bits & 0x80u) << 24) | wide);
}

uint float_to_e4m3(float v) {
    uint bits = floatBitsToUint(v);
    uint sign = (bits >> 24) & 0x80u;
    return sign | min(narrowed(bits & 0x7FFFFFFFu, 3, 7), 0x7Fu);
}

float e5m2_to_float(uint bits) {
    uint magnitude = bits & 0x7Fu;
    uint wide = magnitude >= 0x7Cu ? 0x7F800000u | ((magnitude & 3u) << 21) : widened(magnitude, 2, 15);
    return uintBitsToFloat(((bits & 0x80u) << 24) | wide);
}

uint float_to_e5m2(float v) {
    uint bits = floatBitsToUint(v);
    uint sign = (bits >> 24) & 0x80u;
    uint magnitude = bits & 0x7FFFFFFFu;
    if (magnitude > 0x7F800000u) return sign | 0x7Eu;
    return sign | min(narrowed(magnitude, 2, 15), 0x7Cu);
}

// ---------------------------------------------------------------- lanes as values

float widen(uint dtype, uint lane) {
    if (dtype == FP16) return half_to_float(lane);
    if (dtype == BF16) return bfloat_to_float(lane);
    if (dtype == FP8E4M3) return e4m3_to_float(lane);
    if (dtype == FP8E5M2) return e5m2_to_float(lane);
    return uintBitsToFloat(lane);
}

uint narrow(uint dtype, float v) {
    if (dtype == FP16) return float_to_half(v);
    if (dtype == BF16) return float_to_bfloat(v);
    if (dtype == FP8E4M3) return float_to_e4m3(v);
    if (dtype == FP8E5M2) return float_to_e5m2(v);
    return floatBitsToUint(v);
}

int widen_int(uint dtype, uint lane) {
    if (dtype == BOOL) return lane != 0u ? 1 : 0;
    uint unused = 32u - lane_width(dtype);
    return int(lane << unused) >> int(unused);
}

uint narrow_int(uint dtype, int v) {
    if (dtype == BOOL) return v != 0 ? 1u : 0u;
    return uint(v) & lane_mask(dtype);
}
