// AVG_POOL2D and MAX_POOL2D, NHWC (docs/kernel-interface.md). Averages in FP32 take rows y_first
// to y_last of their windows, and with y_first go on from the sum in y.

override WORKGROUP: u32 = 64;
override OP: u32;
override TYPE: u32;
override MODE: u32;

struct Params {
    count: u32,
    ih: u32, iw: u32, c: u32, oh: u32, ow: u32,
    kh: u32, kw: u32, sh: u32, sw: u32,
    pad_top: u32, pad_left: u32,
    y_first: u32, y_last: u32,
    zero: u32,
}

@group(0) @binding(0) var<storage, read_write> x_words: array<u32>;
@group(0) @binding(1) var<storage, read_write> y_words: array<u32>;
@group(0) @binding(2) var<uniform> params: Params;

// A key that sorts like the float, with both zeros equal.
fn sort_key(v: f32) -> i32 {
    let bits = bitcast<u32>(v);
    let magnitude = bitcast<i32>(bits & 0x7fffffffu);
    return select(magnitude, -magnitude, bits > 0x7fffffffu);
}

// The part of a window that lies in the input, along one axis: [first, last).
fn clip(place: u32, stride: u32, pad: u32, kernel: u32, size: u32) -> vec2<u32> {
    let start = i32(place * stride) - i32(pad);
    return vec2<u32>(u32(max(start, 0)), u32(min(start + i32(kernel), i32(size))));
}

fn lane_at(row: u32, column: u32, channel: u32) -> u32 {
    let index = (row * params.iw + column) * params.c + channel;
    return lane_bits(x_words[index / lanes_of(TYPE)], TYPE, index);
}

// `start` is the input row under the window's first row; it may be above the input.
fn average(
    element: u32, first: u32, start: i32, rows: vec2<u32>, columns: vec2<u32>, channel: u32,
) -> u32 {
    var sum = 0.0;
    if (params.y_first > 0u) { sum = bitcast<f32>(y_words[element]); }
    let begin = max(start + i32(params.y_first), 0);
    let end = min(start + i32(params.y_last), i32(params.ih));
    for (var row = begin; row < end; row++) {
        let iy = u32(row);
        for (var ix = columns.x; ix < columns.y; ix++) {
            sum = fence(sum + widen(TYPE, lane_at(first + iy, ix, channel)));
        }
    }
    if (params.y_last < params.kh) { return narrow(TYPE, sum); }
    let taps = (rows.y - rows.x) * (columns.y - columns.x);
    return narrow(TYPE, strict_divide(sum, f32(taps)));
}

// A NaN is passed on, or with IGNORE (2) counts only where there is nothing else.
fn largest_float(first: u32, rows: vec2<u32>, columns: vec2<u32>, channel: u32) -> u32 {
    var best = bitcast<f32>(0xff800000u ^ params.zero);
    var numbers = 0u;
    var nans = 0u;
    for (var iy = rows.x; iy < rows.y; iy++) {
        for (var ix = columns.x; ix < columns.y; ix++) {
            let v = widen(TYPE, lane_at(first + iy, ix, channel));
            if (is_nan(v)) {
                nans += 1u;
            } else {
                numbers += 1u;
                if (sort_key(v) > sort_key(best)) { best = v; }
            }
        }
    }
    if (numbers == 0u || (MODE != 2u && nans > 0u)) { return narrow(TYPE, nan_value()); }
    return narrow(TYPE, best);
}

fn largest_integer(first: u32, rows: vec2<u32>, columns: vec2<u32>, channel: u32) -> u32 {
    var best = widen_int(TYPE, lane_at(first + rows.x, columns.x, channel));
    for (var iy = rows.x; iy < rows.y; iy++) {
        for (var ix = columns.x; ix < columns.y; ix++) {
            best = max(best, widen_int(TYPE, lane_at(first + iy, ix, channel)));
        }
    }
    return narrow_int(TYPE, best);
}

// Four INT8 channels at once, from `element` on; both it and the channels are multiples of four.
fn largest_four(element: u32) -> u32 {
    let across = params.c / 4u;
    let pixel = element / params.c;
    let columns = clip(pixel % params.ow, params.sw, params.pad_left, params.kw, params.iw);
    let out_row = pixel / params.ow;
    let rows = clip(out_row % params.oh, params.sh, params.pad_top, params.kh, params.ih);
    let first = (out_row / params.oh) * params.ih;
    var best = vec4<i32>(-128);
    for (var iy = rows.x; iy < rows.y; iy++) {
        for (var ix = columns.x; ix < columns.y; ix++) {
            let place = (first + iy) * params.iw + ix;
            let word = x_words[place * across + (element / 4u) % across];
            let high = vec4<u32>(word) << vec4<u32>(24u, 16u, 8u, 0u);
            best = max(best, bitcast<vec4<i32>>(high) >> vec4<u32>(24u));
        }
    }
    let bytes = bitcast<vec4<u32>>(best) & vec4<u32>(0xffu);
    return bytes.x + bytes.y * 0x100u + bytes.z * 0x10000u + bytes.w * 0x1000000u;
}

fn pooled(element: u32) -> u32 {
    let channel = element % params.c;
    let pixel = element / params.c;
    let columns = clip(pixel % params.ow, params.sw, params.pad_left, params.kw, params.iw);
    let out_row = pixel / params.ow;
    let rows = clip(out_row % params.oh, params.sh, params.pad_top, params.kh, params.ih);
    let first = (out_row / params.oh) * params.ih;
    if (OP == 2u) {
        let start = i32((out_row % params.oh) * params.sh) - i32(params.pad_top);
        return average(element, first, start, rows, columns, channel);
    }
    if (is_float(TYPE)) { return largest_float(first, rows, columns, channel); }
    return largest_integer(first, rows, columns, channel);
}

@compute @workgroup_size(WORKGROUP)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = linear_invocation(group, groups, WORKGROUP, lane);
    let lanes = lanes_of(TYPE);
    let begin = i * lanes;
    if (begin >= params.count) { return; }
    if (OP != 2u && TYPE == INT8 && params.c % 4u == 0u) {
        y_words[i] = largest_four(begin);
        return;
    }
    let end = min(begin + lanes, params.count);
    // The lanes beyond the tensor stay as they are.
    var result = 0u;
    if (end - begin < lanes) { result = y_words[i] & (0xffffffffu << lane_shift(TYPE, end)); }
    for (var element = begin; element < end; element++) {
        result |= place(TYPE, pooled(element), element);
    }
    y_words[i] = result;
}
