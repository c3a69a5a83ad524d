// The last step of FFT2D and RFFT2D: the real (PART 0) or imaginary part of z, of the first `columns`
// columns. An image that has infinities or NaNs (listed by fft_load) gets what the sum of products of
// the definition gives: each infinity with the sign of its factor, NaN where they differ in sign, where a
// factor is 0, or for any NaN. RFFT2D's imaginary part is 0 where it is by symmetry.
#version 450
#extension GL_GOOGLE_include_directive : require

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint PART = 0u;
layout(constant_id = 2) const uint REAL = 0u;

layout(set = 0, binding = 0) readonly buffer Z { uint z[]; };
layout(set = 0, binding = 1) readonly buffer Special { uint special[]; };
layout(set = 0, binding = 2) buffer Y { uint y[]; };

layout(push_constant) uniform Params {
    uint count;
    uint rows;
    uint height;
    uint width;
    uint columns;
    uint inverse;
};

#include "linear.glsl"

const uint PLUS = 1u;
const uint MINUS = 2u;
const uint BOTH = 3u;
const uint NAN_BITS = 0x7FC00000u;

uint flipped(uint sign) { return sign == PLUS ? MINUS : sign == MINUS ? PLUS : sign; }

// Signs of cos and sin of `turn` parts of a whole of n; BOTH stands for 0, since 0 times infinity is NaN.
uint cosine_sign(uint turn, uint n) {
    uint quarters = 4u * turn;
    if (quarters == n || quarters == 3u * n) return BOTH;
    return quarters > n && quarters < 3u * n ? MINUS : PLUS;
}

uint sine_sign(uint turn, uint n) {
    if (turn == 0u || 2u * turn == n) return BOTH;
    return 2u * turn > n ? MINUS : PLUS;
}

// What a product of an element of class `kind` contributes: nothing, or signs of infinity.
uint product(uint kind, uint sign) {
    if (kind == 0u) return 0u;
    if (kind == BOTH) return BOTH;
    return kind == MINUS ? flipped(sign) : sign;
}

uint signs(uint image, uint oy, uint ox) {
    uint whole = max(height, width);
    bool turned = PART != run_time(inverse);
    uint seen = 0u;
    for (uint iy = 0u; iy < height; iy++) {
        uint row = image * height + iy;
        uint turn_y = ((oy * iy) & (height - 1u)) * (whole / height);
        for (uint e = 0u; e < special[row]; e++) {
            uint entry = special[rows + row * width + e];
            uint ix = entry >> 4;
            uint turn = turn_y + ((ox * ix) & (width - 1u)) * (whole / width);
            turn &= whole - 1u;
            uint cosine = cosine_sign(turn, whole);
            uint sine = sine_sign(turn, whole);
            if (turned) sine = flipped(sine);
            uint own = entry & 3u;
            uint other = (entry >> 2) & 3u;
            // Real part: re * cos + im * sin; imaginary part: im * cos - re * sin.
            seen |= PART == 0u ? product(own, cosine) : product(other, cosine);
            seen |= PART == 0u ? product(other, sine) : product(own, sine);
            if (seen == BOTH) return seen;
        }
    }
    return seen;
}

void main() {
    uint i = invocation();
    if (i >= count) return;
    uint row = i / columns;
    uint ox = i - row * columns;
    uint image = row / height;
    uint oy = row - image * height;
    if (REAL != 0u && PART != 0u && (oy == 0u || 2u * oy == height) && (ox == 0u || 2u * ox == width)) {
        y[i] = 0u;
        return;
    }
    uint at = 2u * (row * width + ox);
    uint bits = z[at + PART];
    // An infinity or NaN of the image has made one of both parts infinite or NaN everywhere.
    uint other = z[at + 1u - PART];
    bool suspect = max(bits & 0x7FFFFFFFu, other & 0x7FFFFFFFu) >= 0x7F800000u;
    uint seen = suspect ? signs(image, oy, ox) : 0u;
    if (seen == PLUS) bits = 0x7F800000u;
    if (seen == MINUS) bits = 0xFF800000u;
    if (seen == BOTH || (bits & 0x7FFFFFFFu) > 0x7F800000u) bits = NAN_BITS;
    y[i] = bits;
}
