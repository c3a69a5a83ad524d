// CONV3D of FP32 NDHWC (docs/kernel-interface.md).
//
// An invocation makes TILE neighbouring pixels of one row by 4 output channels; neighbouring
// invocations take neighbouring channels. w is [kd][kh][kw][ic][4 * columns], bias is [4 * columns],
// both filled up with zeros. The sum of every output element runs over (kz, ky, kx, ic) from +0; a
// tap outside x is left out as in conv2d. With PART it is dealt out to several
// dispatches as there, too.
#version 450
#extension GL_GOOGLE_include_directive : require
#include "float_controls.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint SKIP = 0u;
layout(constant_id = 2) const uint PART = 0u;

layout(push_constant) uniform Params {
    uint count;
    uint columns;
    uint tiles;
    uint id;
    uint ih;
    uint iw;
    uint ic;
    uint od;
    uint oh;
    uint ow;
    uint oc;
    uint kd;
    uint kh;
    uint kw;
    uint sz;
    uint sy;
    uint sx;
    uint dz;
    uint dy;
    uint dx;
    uint pad_front;
    uint pad_top;
    uint pad_left;
    uint z_first;
    uint z_last;
    uint y_first;
    uint y_last;
    uint x_first;
    uint x_last;
    uint c_first;
    uint c_last;
};

layout(set = 0, binding = 0) readonly buffer X { float x[]; };
layout(set = 0, binding = 1) readonly buffer W { vec4 w[]; };
layout(set = 0, binding = 2) readonly buffer Bias { vec4 bias[]; };
layout(set = 0, binding = 3) buffer Y { float y[]; };

#include "linear.glsl"

const uint TILE = 4u;

void main() {
    uint i = invocation();
    if (i >= count) return;
    uint tile = i / columns;
    uint column = i - tile * columns;
    uint row = tile / tiles;
    uint first = (tile - row * tiles) * TILE;
    uint plane = row / oh;
    uint oy = row - plane * oh;
    uint image = plane / od;
    uint oz = plane - image * od;

    // From here on weights follow one another: a loop is cut only if those around it step once.
    uint tap = (z_first * kh + y_first) * kw + x_first;
    uint weight = (tap * ic + c_first) * columns + column;
    precise vec4 sum[TILE];
    for (uint p = 0u; p < TILE; p++) sum[p] = vec4(0.0);
    uint channel = 4u * column;
    if (PART != 0u && run_time(z_first | y_first | x_first | c_first) != 0u) {
        for (uint p = 0u; p < TILE; p++) {
            if (first + p >= ow) break;
            uint at = (row * ow + first + p) * oc + channel;
            for (uint k = 0u; k < 4u; k++) {
                if (channel + k < oc) sum[p][k] = y[at + k];
            }
        }
    }
    for (uint kz = z_first; kz < z_last; kz++) {
        uint iz = oz * sz + kz * dz - pad_front;
        for (uint ky = y_first; ky < y_last; ky++) {
            uint iy = oy * sy + ky * dy - pad_top;
            bool in_row = iz < id && iy < ih;
            for (uint kx = x_first; kx < x_last; kx++) {
                uint from[TILE];
                bool inside[TILE];
                for (uint p = 0u; p < TILE; p++) {
                    uint ix = (first + p) * sx + kx * dx - pad_left;
                    inside[p] = in_row && ix < iw;
                    from[p] = inside[p] ? (((image * id + iz) * ih + iy) * iw + ix) * ic : 0u;
                }
                for (uint c = c_first; c < c_last; c++) {
                    vec4 a = w[weight];
                    weight += columns;
                    for (uint p = 0u; p < TILE; p++) {
                        float v = x[from[p] + c];
                        if (SKIP == 0u && !inside[p]) v = 0.0;
                        if (SKIP == 0u || inside[p]) sum[p] += v * a;
                    }
                }
            }
        }
    }

    bool ends = PART == 0u ||
        (run_time(z_last) == kd && run_time(y_last) == kh && run_time(x_last) == kw &&
            run_time(c_last) == ic);
    precise vec4 own_bias = bias[column];
    for (uint p = 0u; p < TILE; p++) {
        if (first + p < ow) {
            precise vec4 result = sum[p];
            if (ends) result = result + own_bias;
            uint to = (row * ow + first + p) * oc + channel;
            for (uint k = 0u; k < 4u; k++) {
                if (channel + k < oc) y[to + k] = result[k];
            }
        }
    }
}
