// The first step of FFT2D and RFFT2D: an invocation reads one row of the input, writes it as complex
// numbers, and lists its infinities and NaNs, which butterflies would spread wrongly.
// special[row] is how many the row has; they follow at special[count + row * width], as 16 * column
// plus the classes of the real and (times 4) the imaginary part.
#version 450
#extension GL_GOOGLE_include_directive : require

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint REAL = 0u;

layout(set = 0, binding = 0) readonly buffer Re { uint re[]; };
layout(set = 0, binding = 1) readonly buffer Im { uint im[]; };
layout(set = 0, binding = 2) buffer Z { uvec2 z[]; };
layout(set = 0, binding = 3) buffer Special { uint special[]; };

layout(push_constant) uniform Params {
    uint count;
    uint width;
};

#include "linear.glsl"

// 0 finite, 1 infinity, 2 minus infinity, 3 NaN.
uint class_of(uint bits) {
    uint magnitude = bits & 0x7FFFFFFFu;
    if (magnitude < 0x7F800000u) return 0u;
    return magnitude > 0x7F800000u ? 3u : 1u + (bits >> 31);
}

void main() {
    uint row = invocation();
    if (row >= count) return;
    uint found = 0u;
    for (uint x = 0u; x < width; x++) {
        uint at = row * width + x;
        uint imaginary = REAL != 0u ? 0u : im[at];
        uint classes = class_of(re[at]) | (class_of(imaginary) << 2);
        z[at] = uvec2(re[at], imaginary);
        if (classes != 0u) {
            special[count + row * width + found] = (x << 4) | classes;
            found += 1u;
        }
    }
    special[row] = found;
}
