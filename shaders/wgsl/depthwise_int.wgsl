// DEPTHWISE_CONV2D of integers, NHWC (docs/kernel-interface.md).
//
// One invocation owns four pixels of a row by four output channels. Weights [ky][kx] are rows of
// `columns` words of four INT8. `bias` is [zero point of x, of w, bias], an INT48 bias as pairs.
// KW and SX, by which a row's x could be kept, are not used here.

override WORKGROUP: u32 = 64;
override X_TYPE: u32;
override KW: u32;
override SX: u32;
override FOURS: u32;

struct Params {
    count: u32, columns: u32, tiles: u32,
    ih: u32, iw: u32, ic: u32,
    oh: u32, ow: u32, oc: u32,
    kh: u32, kw: u32, sy: u32, sx: u32, dy: u32, dx: u32,
    pad_top: u32, pad_left: u32,
    multiplier: u32, bias_step: u32, y_first: u32,
    zero: u32,
}

@group(0) @binding(0) var<storage, read_write> x: array<u32>;
@group(0) @binding(1) var<storage, read_write> w: array<u32>;
@group(0) @binding(2) var<storage, read_write> bias: array<i32>;
@group(0) @binding(3) var<storage, read_write> y: array<i32>;
@group(0) @binding(4) var<uniform> params: Params;

fn two_words() -> bool { return X_TYPE == INT16; }

fn value_at(e: u32) -> i32 {
    return widen_int(X_TYPE, lane_bits(x[e / lanes_of(X_TYPE)], X_TYPE, e));
}

// The x of four output channels at a pixel whose channels begin at `from_element`.
fn values_of(from_element: u32, column: u32) -> vec4<i32> {
    if (FOURS != 0u && X_TYPE == INT8) { return four_bytes(x[from_element / 4u + column]); }
    let channel = 4u * column + vec4<u32>(0u, 1u, 2u, 3u);
    let c = min(channel / params.multiplier, vec4<u32>(params.ic - 1u));
    let e = vec4<u32>(from_element) + c;
    return vec4<i32>(value_at(e.x), value_at(e.y), value_at(e.z), value_at(e.w));
}

// What one pixel gains by one tap.
fn term(row: u32, col: u32, kx: u32, column: u32, weights: vec4<i32>) -> vec4<i32> {
    let ix = col * params.sx + kx * params.dx - params.pad_left;
    if (ix >= params.iw) { return vec4<i32>(); }
    return (values_of((row * params.iw + ix) * params.ic, column) - vec4<i32>(bias[0])) * weights;
}

fn store(at: u32, channel: u32, low: i32, high: i32) {
    if (channel >= params.oc) { return; }
    if (two_words()) {
        let from_word = 2u + 2u * channel * params.bias_step;
        var before = vec2<i32>(bias[from_word], bias[from_word + 1u]);
        if (params.y_first > 0u) { before = vec2<i32>(y[at * 2u], y[at * 2u + 1u]); }
        let v = with_bias(low, high, before.x, before.y);
        y[at * 2u] = v.x;
        y[at * 2u + 1u] = v.y;
    } else if (params.y_first > 0u) {
        // Another dispatch made the sums of the rows in front.
        y[at] += low;
    } else {
        y[at] = low + bias[2u + channel * params.bias_step];
    }
}

fn finish(row: u32, col: u32, channel: u32, sums: Sums) {
    if (col >= params.ow) { return; }
    let to = (row * params.ow + col) * params.oc + channel;
    store(to, channel, sums.low.x, sums.high.x);
    store(to + 1u, channel + 1u, sums.low.y, sums.high.y);
    store(to + 2u, channel + 2u, sums.low.z, sums.high.z);
    store(to + 3u, channel + 3u, sums.low.w, sums.high.w);
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
    let col = (tile % params.tiles) * 4u;
    let image = out_row / params.oh;
    let oy = out_row % params.oh;
    let w_zero = vec4<i32>(bias[1]);
    var s0 = Sums();
    var s1 = Sums();
    var s2 = Sums();
    var s3 = Sums();
    for (var ky = params.y_first; ky < params.kh; ky++) {
        let iy = oy * params.sy + ky * params.dy - params.pad_top;
        if (iy >= params.ih) { continue; }
        let row = image * params.ih + iy;
        for (var kx = 0u; kx < params.kw; kx++) {
            let weights = four_bytes(w[(ky * params.kw + kx) * params.columns + column]) - w_zero;
            s0 = plus(s0, term(row, col, kx, column, weights), two_words());
            s1 = plus(s1, term(row, col + 1u, kx, column, weights), two_words());
            s2 = plus(s2, term(row, col + 2u, kx, column, weights), two_words());
            s3 = plus(s3, term(row, col + 3u, kx, column, weights), two_words());
        }
    }
    finish(out_row, col, 4u * column, s0);
    finish(out_row, col + 1u, 4u * column, s1);
    finish(out_row, col + 2u, 4u * column, s2);
    finish(out_row, col + 3u, 4u * column, s3);
}
