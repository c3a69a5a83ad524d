// Shared parts of the NVFP4 kernels: E2M1 codes, E4M3 block scales, activations (docs/nvfp4-kernels.md).
//
// A word holds 8 codes, element 2j of a row in the low nibble of byte j. As halves, the three
// magnitude bits of a code (2 exponent bits, 1 mantissa bit) moved to bits 11..9 and its sign moved
// to bit 15 are the code's value times 2^-14; the seven low bits of a scale moved to bits 13..7 and
// its sign to bit 15 are the scale's value times 2^-8 (both have the half's way with subnormals).

const uint NVFP4_NONE = 0u;
const uint NVFP4_SILU = 1u;
const uint NVFP4_SIGMOID = 2u;
const uint NVFP4_SQUARED_RELU = 3u;

// Codes (pair, pair + 4) of a word as two halves, times 2^-14. Signs come three bits nearer to their
// place for all pairs at once, so that a pair takes one shift more.
uint code_pair(uint word, uint pair) {
    if (pair == 3u) return (word & 0x80008000u) | ((word >> 3) & 0x0e000e00u);
    uint signs = (word << 3) & (0x00400040u << (4u * pair));
    return ((word & (0x00070007u << (4u * pair))) | signs) << (9u - 4u * pair);
}

// The mask for `code_pairs`. It comes from a parameter below 2^31 so that compilers do not take the
// selections with it apart: they are one operation with a mask in a register, and two with constants.
uint magnitude_mask(uint small) { return 0x0e0e0e0eu | (small >> 31); }

// All codes of a word as halves times 2^-14, in pairs (0, 4), (1, 5), (2, 6), (3, 7). For four codes
// at once (the odd ones, then the even ones) magnitudes go three bits down, so that they lie below
// their sign as in a half.
uvec4 code_pairs(uint word, uint mask) {
    uint odd = word ^ (((word >> 3) ^ word) & mask);
    uint high = word << 4;
    uint even = high ^ (((word << 1) ^ high) & mask);
    return uvec4(even << 8, odd << 8, even, odd) & 0x8e008e00u;
}

// Two scales each of two rows (bits 7..0 and 15..8 of each) as halves times 2^-8: the pair (row,
// other row) of the first scales, and of the second ones; a NaN stays a NaN.
uvec2 scale_pairs(uint row, uint other_row) {
    uint all = row | (other_row << 16);
    uint more = (all & 0x7f7f7f7fu) + 0x01010101u;
    uint sizes = (all & 0x7f7f7f7fu) | (more & 0x80808080u);
    return uvec2(
        ((all << 8) & 0x80008000u) | ((sizes << 7) & 0x7f807f80u),
        (all & 0x80008000u) | ((sizes >> 1) & 0x7f807f80u));
}

// Two scales (in bits 7..0 and 23..16) as halves, times 2^-8; a NaN stays a NaN.
uint scale_pair(uint scales) {
    uint sign = scales & 0x00800080u;
    uint nan = ((scales & 0x007f007fu) + 0x00010001u) & 0x00800080u;
    return (scales + sign + nan) << 7;
}

// A scale as a float, exactly, by integer steps alone; a NaN stays a NaN.
float scale_value(uint code) {
    uint low = code & 7u;
    uint bits = ((code & 0x7fu) << 20) + 0x3c000000u;
    // Subnormals are low * 2^-9, taken as a difference of normal numbers.
    float small = uintBitsToFloat(0x3c800000u | (low << 20)) - 0.015625;
    float size = (code & 0x78u) == 0u ? small : uintBitsToFloat(bits);
    if ((code & 0x7fu) == 0x7fu) size = uintBitsToFloat(0x7fc00000u);
    return (code & 0x80u) != 0u ? -size : size;
}

// A code's value as a float, exactly.
float code_value(uint code) {
    uint size = code & 7u;
    uint bits = size < 2u ? size * 0x3f000000u : (size << 22) + 0x3f000000u;
    return uintBitsToFloat(bits | ((code & 8u) << 28));
}
