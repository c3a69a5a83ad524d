// CONV3D of FP32, NDHWC (docs/kernel-interface.md).
//
// One invocation owns four pixels of a row by four channels, whose weights are one vector for each
// [kz][ky][kx][input channel]. Every product and every sum is fenced on its own. With PART a dispatch sums
// the terms from *_first up to *_last on top of what y holds of earlier ones; the one that has the
// last term adds the bias.

override WORKGROUP: u32 = 64;
override SKIP: u32;
override PART: u32;

struct Params {
    count: u32, columns: u32, tiles: u32,
    id: u32, ih: u32, iw: u32, ic: u32,
    od: u32, oh: u32, ow: u32, oc: u32,
    kd: u32, kh: u32, kw: u32,
    sz: u32, sy: u32, sx: u32,
    dz: u32, dy: u32, dx: u32,
    pad_front: u32, pad_top: u32, pad_left: u32,
    z_first: u32, z_last: u32, y_first: u32, y_last: u32,
    x_first: u32, x_last: u32, c_first: u32, c_last: u32,
    zero: u32,
}

fn value_at(at: u32, present: bool) -> f32 {
    if (SKIP != 0u) { return x[at]; }
    return select(0.0, x[at], present);
}

fn begins() -> bool {
    return PART == 0u || params.z_first + params.y_first + params.x_first + params.c_first == 0u;
}

fn ends() -> bool {
    return PART == 0u || (params.z_last == params.kd && params.y_last == params.kh
        && params.x_last == params.kw && params.c_last == params.ic);
}

// The sums of a pixel that another dispatch left; 0 where there are none.
fn begun(line: u32, pixel: u32, column: u32) -> vec4<f32> {
    var v = vec4<f32>();
    if (begins() || pixel >= params.ow) { return v; }
    let rest = params.oc - 4u * column;
    let at = (line * params.ow + pixel) * params.oc + 4u * column;
    v.x = y[at];
    if (rest > 1u) { v.y = y[at + 1u]; }
    if (rest > 2u) { v.z = y[at + 2u]; }
    if (rest > 3u) { v.w = y[at + 3u]; }
    return v;
}

fn finish(line: u32, pixel: u32, column: u32, sum: vec4<f32>) {
    if (pixel >= params.ow) { return; }
    var v = sum;
    if (ends()) { v = fence4(sum + bias[column]); }
    let rest = params.oc - 4u * column;
    let at = (line * params.ow + pixel) * params.oc + 4u * column;
    y[at] = v.x;
    if (rest > 1u) { y[at + 1u] = v.y; }
    if (rest > 2u) { y[at + 2u] = v.z; }
    if (rest > 3u) { y[at + 3u] = v.w; }
}

@compute @workgroup_size(WORKGROUP)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = linear_invocation(group, groups, WORKGROUP, lane);
    if (i >= params.count) { return; }
    let column = i % params.columns;
    let pixel = i / params.columns % params.tiles * 4u;
    let line = i / params.columns / params.tiles;
    let oy = line % params.oh;
    let oz = line / params.oh % params.od;
    let image = line / params.oh / params.od;

    let left = vec4<u32>(pixel, pixel + 1u, pixel + 2u, pixel + 3u) * params.sx - params.pad_left;
    var s0 = begun(line, pixel, column);
    var s1 = begun(line, pixel + 1u, column);
    var s2 = begun(line, pixel + 2u, column);
    var s3 = begun(line, pixel + 3u, column);
    for (var kz = params.z_first; kz < params.z_last; kz++) {
        let iz = oz * params.sz + kz * params.dz - params.pad_front;
        for (var ky = params.y_first; ky < params.y_last; ky++) {
            let iy = oy * params.sy + ky * params.dy - params.pad_top;
            let within = iz < params.id && iy < params.ih;
            let start = ((image * params.id + iz) * params.ih + iy) * params.iw;
            for (var kx = params.x_first; kx < params.x_last; kx++) {
                let ix = left + kx * params.dx;
                let present = (ix < vec4<u32>(params.iw)) & vec4<bool>(within);
                let at = select(vec4<u32>(), (start + ix) * params.ic, present);
                let tap = (kz * params.kh + ky) * params.kw + kx;
                for (var c = params.c_first; c < params.c_last; c++) {
                    let row = w[(tap * params.ic + c) * params.columns + column];
                    s0 = step4(s0, value_at(at.x + c, present.x), row, present.x);
                    s1 = step4(s1, value_at(at.y + c, present.y), row, present.y);
                    s2 = step4(s2, value_at(at.z + c, present.z), row, present.z);
                    s3 = step4(s3, value_at(at.w + c, present.w), row, present.w);
                }
            }
        }
    }
    finish(line, pixel, column, s0);
    finish(line, pixel + 1u, column, s1);
    finish(line, pixel + 2u, column, s2);
    finish(line, pixel + 3u, column, s3);
}
