// Products of four INT8 pairs, summed: the integer dot product of SPIR-V (OpSDot on packed words,
// SPV_KHR_integer_dot_product). The sum of four products never leaves INT32.
#extension GL_EXT_spirv_intrinsics : require

const uint ONES = 0x01010101u;

spirv_instruction(
    extensions = ["SPV_KHR_integer_dot_product"],
    capabilities = [6018, 6019],  // DotProductInput4x8BitPacked, DotProduct
    id = 4450)
int signed_dot(uint a, uint b, spirv_literal int format);

int dot_4x8(uint a, uint b) { return signed_dot(a, b, 0); }

// One word with four.
ivec4 dots(uint a, uvec4 b) {
    return ivec4(dot_4x8(a, b.x), dot_4x8(a, b.y), dot_4x8(a, b.z), dot_4x8(a, b.w));
}

// Four elements of x from any element on, out of two neighbouring words.
uint joined(uint word, uint following, uint element) {
    uint shift = (element & 3u) << 3;
    return (word >> shift) | ((following << 1) << (31u - shift));
}
