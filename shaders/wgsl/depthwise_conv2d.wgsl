// DEPTHWISE_CONV2D of FP32, NHWC (docs/kernel-interface.md).
//
// One invocation owns four pixels of a row by four output channels. Weights are one row of
// `columns` vectors for each tap. KW 3 with SX 1 or 2 keeps the inputs of a row in variables; all
// other shapes read every tap. Both give the same sums: taps in order, each step fenced. With PART
// the rows of taps from y_first up to y_last are summed, on top of what y holds of earlier ones; the
// bias comes with the last.

override WORKGROUP: u32 = 64;
override KW: u32;
override SX: u32;
override FOURS: u32;
override SKIP: u32;
override PART: u32;

struct Params {
    count: u32, columns: u32, tiles: u32,
    ih: u32, iw: u32, ic: u32,
    oh: u32, ow: u32, oc: u32,
    kh: u32, kw: u32, sy: u32, sx: u32, dy: u32, dx: u32,
    pad_top: u32, pad_left: u32,
    multiplier: u32,
    y_first: u32, y_last: u32,
    zero: u32,
}

// The inputs of four output channels under one tap.
struct Tap { v: vec4<f32>, present: bool }

fn tap_step(sum: vec4<f32>, tap: Tap, weights: vec4<f32>) -> vec4<f32> {
    let next = fence4(sum + fence4(tap.v * weights));
    if (SKIP != 0u) { return select(sum, next, tap.present); }
    return next;
}

// `row` is the first pixel of an input row, `row_present` whether there is such a row.
fn tap_at(row: u32, row_present: bool, ix: u32, channels: vec4<u32>) -> Tap {
    let present = row_present && ix < params.iw;
    let at = select(vec4<u32>(), vec4<u32>((row + ix) * params.ic), present) + channels;
    let v = vec4<f32>(x[at.x], x[at.y], x[at.z], x[at.w]);
    if (SKIP != 0u) { return Tap(v, present); }
    return Tap(select(vec4<f32>(), v, present), present);
}

// The sums of a pixel that another dispatch left; 0 where there are none.
fn begun(first: u32, ox: u32, channel: u32) -> vec4<f32> {
    var v = vec4<f32>();
    if (PART == 0u || params.y_first == 0u || ox >= params.ow) { return v; }
    let at = (first + ox) * params.oc + channel;
    v.x = y[at];
    if (channel + 1u < params.oc) { v.y = y[at + 1u]; }
    if (channel + 2u < params.oc) { v.z = y[at + 2u]; }
    if (channel + 3u < params.oc) { v.w = y[at + 3u]; }
    return v;
}

fn with_bias(sum: vec4<f32>, column: u32) -> vec4<f32> {
    if (PART != 0u && params.y_last < params.kh) { return sum; }
    return fence4(sum + bias[column]);
}

fn store_pixel(first: u32, ox: u32, channel: u32, v: vec4<f32>) {
    if (ox >= params.ow) { return; }
    let to = (first + ox) * params.oc + channel;
    y[to] = v.x;
    if (channel + 1u < params.oc) { y[to + 1u] = v.y; }
    if (channel + 2u < params.oc) { y[to + 2u] = v.z; }
    if (channel + 3u < params.oc) { y[to + 3u] = v.w; }
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
    let tile = i / params.columns;
    let out_row = tile / params.tiles;
    let ox = (tile % params.tiles) * 4u;
    let image = out_row / params.oh;
    let channel = 4u * column;
    // Lanes beyond the last channel compute it again and are not stored.
    var channels = channel + vec4<u32>(0u, 1u, 2u, 3u);
    if (FOURS == 0u) {
        channels = min(channels, vec4<u32>(params.oc - 1u)) / params.multiplier;
    }

    let top = (out_row % params.oh) * params.sy - params.pad_top;
    let left = ox * params.sx - params.pad_left;
    let first = out_row * params.ow;
    var s0 = begun(first, ox, channel);
    var s1 = begun(first, ox + 1u, channel);
    var s2 = begun(first, ox + 2u, channel);
    var s3 = begun(first, ox + 3u, channel);
    for (var ky = params.y_first; ky < params.y_last; ky++) {
        let iy = top + ky * params.dy;
        let row = (image * params.ih + iy) * params.iw;
        let here = iy < params.ih;
        var at = ky * params.kw * params.columns + column;
        if (KW == 3u && SX == 1u) {
            let w0 = w[at];
            let w1 = w[at + params.columns];
            let w2 = w[at + 2u * params.columns];
            let t0 = tap_at(row, here, left, channels);
            let t1 = tap_at(row, here, left + 1u, channels);
            let t2 = tap_at(row, here, left + 2u, channels);
            let t3 = tap_at(row, here, left + 3u, channels);
            let t4 = tap_at(row, here, left + 4u, channels);
            let t5 = tap_at(row, here, left + 5u, channels);
            s0 = tap_step(tap_step(tap_step(s0, t0, w0), t1, w1), t2, w2);
            s1 = tap_step(tap_step(tap_step(s1, t1, w0), t2, w1), t3, w2);
            s2 = tap_step(tap_step(tap_step(s2, t2, w0), t3, w1), t4, w2);
            s3 = tap_step(tap_step(tap_step(s3, t3, w0), t4, w1), t5, w2);
        } else if (KW == 3u && SX == 2u) {
            let w0 = w[at];
            let w1 = w[at + params.columns];
            let w2 = w[at + 2u * params.columns];
            let t0 = tap_at(row, here, left, channels);
            let t1 = tap_at(row, here, left + 1u, channels);
            let t2 = tap_at(row, here, left + 2u, channels);
            let t3 = tap_at(row, here, left + 3u, channels);
            let t4 = tap_at(row, here, left + 4u, channels);
            let t5 = tap_at(row, here, left + 5u, channels);
            let t6 = tap_at(row, here, left + 6u, channels);
            let t7 = tap_at(row, here, left + 7u, channels);
            let t8 = tap_at(row, here, left + 8u, channels);
            s0 = tap_step(tap_step(tap_step(s0, t0, w0), t1, w1), t2, w2);
            s1 = tap_step(tap_step(tap_step(s1, t2, w0), t3, w1), t4, w2);
            s2 = tap_step(tap_step(tap_step(s2, t4, w0), t5, w1), t6, w2);
            s3 = tap_step(tap_step(tap_step(s3, t6, w0), t7, w1), t8, w2);
        } else {
            for (var kx = 0u; kx < params.kw; kx++) {
                let weights = w[at];
                at += params.columns;
                let ix = left + kx * params.dx;
                s0 = tap_step(s0, tap_at(row, here, ix, channels), weights);
                s1 = tap_step(s1, tap_at(row, here, ix + params.sx, channels), weights);
                s2 = tap_step(s2, tap_at(row, here, ix + 2u * params.sx, channels), weights);
                s3 = tap_step(s3, tap_at(row, here, ix + 3u * params.sx, channels), weights);
            }
        }
    }

    store_pixel(first, ox, channel, with_bias(s0, column));
    store_pixel(first, ox + 1u, channel, with_bias(s1, column));
    store_pixel(first, ox + 2u, channel, with_bias(s2, column));
    store_pixel(first, ox + 3u, channel, with_bias(s3, column));
}
