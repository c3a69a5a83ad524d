// AVG_POOL2D of integers, NHWC (docs/kernel-interface.md). `zeros` is [zero point of x, of y].
// STAGE 1 only sums along x, to INT32; STAGE 2 takes such sums and does the rest; STAGE 0 does all.

override WORKGROUP: u32 = 64;
override TYPE: u32;
override STAGE: u32;

struct Params {
    count: u32,
    ih: u32, iw: u32, c: u32, oh: u32, ow: u32,
    kh: u32, kw: u32, sh: u32, sw: u32,
    pad_top: u32, pad_left: u32,
    zero: u32,
}

@group(0) @binding(0) var<storage, read_write> x: array<u32>;
@group(0) @binding(1) var<storage, read_write> zeros: array<i32>;
@group(0) @binding(2) var<storage, read_write> y: array<u32>;
@group(0) @binding(3) var<uniform> params: Params;

// The part of a window that lies in the input, along one axis: [first, last).
fn clip(position: u32, stride: u32, pad: u32, kernel: u32, size: u32) -> vec2<u32> {
    let start = i32(position * stride) - i32(pad);
    return vec2<u32>(u32(max(start, 0)), u32(min(start + i32(kernel), i32(size))));
}

// Places of the smallest power of two that is not below `taps`.
fn places(taps: u32) -> u32 { return 32u - countLeadingZeros(taps - 1u); }

// TOSA's multiplier, floor((2^30 + 1) * 2^power / taps), by long division in digits of four bits:
// taps is below 2^27, so that a rest with a further digit fits a word.
fn reciprocal(taps: u32, power: u32) -> u32 {
    let dividend = full_product(0x40000001u, 1u << power);
    var rest = 0u;
    var quotient = 0u;
    for (var digit = 16u; digit > 0u; digit--) {
        let position = 4u * (digit - 1u);
        let word = select(dividend.x, dividend.y, position >= 32u);
        rest = (rest << 4u) | ((word >> (position & 31u)) & 15u);
        quotient = (quotient << 4u) | (rest / taps);
        rest = rest % taps;
    }
    return quotient;
}

// The sum of a row's x in these columns, less their zero points.
fn along_row(row: u32, columns: vec2<u32>, channel: u32) -> i32 {
    var sum = 0;
    for (var ix = columns.x; ix < columns.y; ix++) {
        let at = (row * params.iw + ix) * params.c + channel;
        sum += widen_int(TYPE, lane_bits(x[at / lanes_of(TYPE)], TYPE, at));
    }
    return sum - i32(columns.y - columns.x) * zeros[0];
}

// A sum of taps, scaled by their reciprocal, as a lane.
fn mean_of(sum: i32, taps: u32, multiplier: u32) -> u32 {
    let mean = scaled_down(product(sum, bitcast<i32>(multiplier)), 30u + places(taps), false);
    let top = bitcast<i32>(lane_mask(TYPE) >> 1u);
    let near = clamp(mean, -0x100000, 0x100000);
    return bitcast<u32>(clamp(near + zeros[1], -top - 1, top)) & lane_mask(TYPE);
}

fn averaged(e: u32) -> u32 {
    let channel = e % params.c;
    let pixel = e / params.c;
    let columns = clip(pixel % params.ow, params.sw, params.pad_left, params.kw, params.iw);
    let out_row = pixel / params.ow;
    let rows = clip(out_row % params.oh, params.sh, params.pad_top, params.kh, params.ih);
    let first = (out_row / params.oh) * params.ih;
    var sum = 0;
    for (var iy = rows.x; iy < rows.y; iy++) {
        if (STAGE == 2u) {
            let at = ((first + iy) * params.ow + pixel % params.ow) * params.c + channel;
            sum += bitcast<i32>(x[at]);
        } else {
            sum += along_row(first + iy, columns, channel);
        }
    }
    let taps = (rows.y - rows.x) * (columns.y - columns.x);
    return mean_of(sum, taps, reciprocal(taps, places(taps)));
}

// Four INT8 channels of word `i`, where the channels are whole words.
fn averaged_four(i: u32) -> u32 {
    let across = params.c / 4u;
    let pixel = i / across;
    let columns = clip(pixel % params.ow, params.sw, params.pad_left, params.kw, params.iw);
    let out_row = pixel / params.ow;
    let rows = clip(out_row % params.oh, params.sh, params.pad_top, params.kh, params.ih);
    let first = (out_row / params.oh) * params.ih;
    let taps = (rows.y - rows.x) * (columns.y - columns.x);
    var sum = vec4<i32>(-zeros[0] * i32(taps));
    for (var iy = rows.x; iy < rows.y; iy++) {
        for (var ix = columns.x; ix < columns.y; ix++) {
            let word = x[((first + iy) * params.iw + ix) * across + i % across];
            let high = vec4<u32>(word) << vec4<u32>(24u, 16u, 8u, 0u);
            sum += bitcast<vec4<i32>>(high) >> vec4<u32>(24u);
        }
    }
    let multiplier = reciprocal(taps, places(taps));
    return mean_of(sum.x, taps, multiplier) | (mean_of(sum.y, taps, multiplier) << 8u)
        | (mean_of(sum.z, taps, multiplier) << 16u) | (mean_of(sum.w, taps, multiplier) << 24u);
}

@compute @workgroup_size(WORKGROUP)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let i = (group.y * groups.x + group.x) * WORKGROUP + local;
    if (STAGE == 1u) {
        if (i >= params.count) { return; }
        let place_in_rows = i / params.c;
        let col = place_in_rows % params.ow;
        let columns = clip(col, params.sw, params.pad_left, params.kw, params.iw);
        y[i] = bitcast<u32>(along_row(place_in_rows / params.ow, columns, i % params.c));
        return;
    }
    let lanes = lanes_of(TYPE);
    if (i >= params.count / lanes + min(params.count % lanes, 1u)) { return; }
    if (TYPE == INT8 && STAGE == 0u && params.c % 4u == 0u) {
        y[i] = averaged_four(i);
        return;
    }
    var word = 0u;
    var keep = 0u;
    for (var k = 0u; k < lanes; k++) {
        let e = i * lanes + k;
        if (e < params.count) {
            word |= place(TYPE, averaged(e), k);
        } else {
            keep |= place(TYPE, lane_mask(TYPE), k);
        }
    }
    if (keep != 0u) { word |= y[i] & keep; }
    y[i] = word;
}
