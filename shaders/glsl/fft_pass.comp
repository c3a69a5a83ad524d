// One pass of a Fourier transform along one axis (Stockham, two points for each invocation):
// with half = n / 2 and k = j mod s,  y[2j - k] = x[j] + x[j + half],
// y[2j - k + s] = (x[j] - x[j + half]) * turns[j - k].  Elements of the axis are `pitch` apart; `inner`
// neighbours are transformed at once. s is a power of two.
#version 450
#extension GL_GOOGLE_include_directive : require
#include "float_controls.glsl"

layout(local_size_x_id = 0) in;

layout(set = 0, binding = 0) readonly buffer X { vec2 x[]; };
layout(set = 0, binding = 1) readonly buffer Turns { vec2 turns[]; };
layout(set = 0, binding = 2) buffer Y { vec2 y[]; };

layout(push_constant) uniform Params {
    uint count;
    uint half_n;
    uint s;
    uint inner;
    uint pitch;
};

#include "linear.glsl"

void main() {
    uint i = invocation();
    if (i >= count) return;
    uint line = i / inner;
    uint outer = line / half_n;
    uint j = line - outer * half_n;
    uint base = outer * half_n * 2u * pitch + (i - line * inner);
    uint k = j & (s - 1u);
    vec2 a = x[base + j * pitch];
    vec2 b = x[base + (j + half_n) * pitch];
    vec2 turn = turns[j - k];
    precise vec2 sum = a + b;
    precise vec2 rest = a - b;
    precise vec2 turned;
    turned.x = rest.x * turn.x - rest.y * turn.y;
    turned.y = rest.x * turn.y + rest.y * turn.x;
    uint to = base + (2u * j - k) * pitch;
    y[to] = sum;
    y[to + s * pitch] = turned;
}
