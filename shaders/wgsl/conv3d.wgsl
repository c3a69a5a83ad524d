// CONV3D of FP32, NDHWC (docs/kernel-interface.md).
//
// One invocation owns four pixels of a row by four channels, whose weights are one vector for each
// [kz][ky][kx][input channel]. Every product and every sum is fenced on its own.

override WORKGROUP: u32 = 64;
override SKIP: u32;

struct Params {
    count: u32, columns: u32, tiles: u32,
    id: u32, ih: u32, iw: u32, ic: u32,
    od: u32, oh: u32, ow: u32, oc: u32,
    kd: u32, kh: u32, kw: u32,
    sz: u32, sy: u32, sx: u32,
    dz: u32, dy: u32, dx: u32,
    pad_front: u32, pad_top: u32, pad_left: u32,
    zero: u32,
}

@group(0) @binding(0) var<storage, read_write> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> w: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> bias: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;
@group(0) @binding(4) var<uniform> params: Params;

fn fence4(v: vec4<f32>) -> vec4<f32> {
    return bitcast<vec4<f32>>(bitcast<vec4<u32>>(v) ^ vec4<u32>(params.zero));
}

// sum + v * row, each step rounded. With SKIP the sum of an absent pixel stays.
fn step4(sum: vec4<f32>, v: f32, row: vec4<f32>, present: bool) -> vec4<f32> {
    let next = fence4(sum + fence4(v * row));
    if (SKIP != 0u) { return select(sum, next, present); }
    return next;
}

fn value_at(at: u32, present: bool) -> f32 {
    if (SKIP != 0u) { return x[at]; }
    return select(0.0, x[at], present);
}

fn finish(line: u32, pixel: u32, column: u32, sum: vec4<f32>) {
    if (pixel >= params.ow) { return; }
    let v = fence4(sum + bias[column]);
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
    var s0 = vec4<f32>();
    var s1 = vec4<f32>();
    var s2 = vec4<f32>();
    var s3 = vec4<f32>();
    var tap = 0u;
    for (var kz = 0u; kz < params.kd; kz++) {
        let iz = oz * params.sz + kz * params.dz - params.pad_front;
        for (var ky = 0u; ky < params.kh; ky++) {
            let iy = oy * params.sy + ky * params.dy - params.pad_top;
            let within = iz < params.id && iy < params.ih;
            let start = ((image * params.id + iz) * params.ih + iy) * params.iw;
            for (var kx = 0u; kx < params.kw; kx++) {
                let ix = left + kx * params.dx;
                let present = (ix < vec4<u32>(params.iw)) & vec4<bool>(within);
                let at = select(vec4<u32>(), (start + ix) * params.ic, present);
                for (var c = 0u; c < params.ic; c++) {
                    let row = w[(tap * params.ic + c) * params.columns + column];
                    s0 = step4(s0, value_at(at.x + c, present.x), row, present.x);
                    s1 = step4(s1, value_at(at.y + c, present.y), row, present.y);
                    s2 = step4(s2, value_at(at.z + c, present.z), row, present.z);
                    s3 = step4(s3, value_at(at.w + c, present.w), row, present.w);
                }
                tap += 1u;
            }
        }
    }
    finish(line, pixel, column, s0);
    finish(line, pixel + 1u, column, s1);
    finish(line, pixel + 2u, column, s2);
    finish(line, pixel + 3u, column, s3);
}
