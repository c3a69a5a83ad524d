// CONV2D, CONV3D and gathered TRANSPOSE_CONV2D of INT8 by packed dot products
// (docs/kernel-interface.md).
//
// One invocation owns four pixels by eight channels. Weights [kz][ky][kx][group] are rows of
// 8 * columns words, each four input channels of one output channel. Zero points are taken off at the
// end: SUMS & 1 asks for that of x (otherwise the bias has it), SUMS & 2 for that of w. For this every
// tap counts for all four pixels, those outside the input with the zero point as their value.

override WORKGROUP: u32 = 64;
override OP: u32;
override FOURS: u32;
override SUMS: u32;

// First element under a tap; all bits set when the tap lies outside the input.
fn place_of(image: u32, pixel: vec3<u32>, tap: vec3<u32>) -> u32 {
    let ix = source(pixel.x, tap.x, params.sx, params.dx, params.pad_left, params.iw);
    let iy = source(pixel.y, tap.y, params.sy, params.dy, params.pad_top, params.ih);
    let iz = pixel.z * params.sz + tap.z * params.dz - params.pad_front;
    if (ix >= params.iw || iy >= params.ih || iz >= params.id) { return 0xffffffffu; }
    let line = (image * params.id + iz) * params.ih + iy;
    return (line * params.iw + ix) * params.ic;
}

// Four elements of x, from element `at + 4 * group` on; `padding` where the tap lies outside.
fn four_of(at: u32, group: u32, padding: u32) -> u32 {
    if (at == 0xffffffffu) { return padding; }
    let word = x[at / 4u + group];
    let lane = at % 4u;
    if (FOURS != 0u || lane == 0u) { return word; }
    let last = arrayLength(&x) - 1u;
    return (word >> (8u * lane)) | (x[min(at / 4u + group + 1u, last)] << (32u - 8u * lane));
}

fn products(a: u32, at: u32) -> vec4<i32> {
    return vec4<i32>(
        dot4I8Packed(a, w[at]), dot4I8Packed(a, w[at + 1u]),
        dot4I8Packed(a, w[at + 2u]), dot4I8Packed(a, w[at + 3u]));
}

fn store(at: u32, channel: u32, value: i32) {
    if (channel >= params.oc) { return; }
    if (continues()) {
        y[at] += value;
    } else {
        y[at] = value + bias[2u + channel * params.bias_step];
    }
}

fn finish(image: u32, number: u32, channel: u32, a: vec4<i32>, b: vec4<i32>) {
    let pixels = params.od * params.oh * params.ow;
    if (number >= pixels) { return; }
    let to = (image * pixels + number) * params.oc + channel;
    store(to, channel, a.x);
    store(to + 1u, channel + 1u, a.y);
    store(to + 2u, channel + 2u, a.z);
    store(to + 3u, channel + 3u, a.w);
    store(to + 4u, channel + 4u, b.x);
    store(to + 5u, channel + 5u, b.y);
    store(to + 6u, channel + 6u, b.z);
    store(to + 7u, channel + 7u, b.w);
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
    let image = tile / params.tiles;
    let number = (tile % params.tiles) * 4u;
    let pixel0 = pixel_of(number);
    let pixel1 = pixel_of(number + 1u);
    let pixel2 = pixel_of(number + 2u);
    let pixel3 = pixel_of(number + 3u);

    let x_zero = bias[0];
    let w_zero = bias[1];
    let ones = 0x01010101u;
    let padding = (bitcast<u32>(x_zero) & 0xffu) * ones;
    let depth = (params.ic + 3u) / 4u;
    let first = params.c_first / 4u;
    let last = (params.c_last + 3u) / 4u;
    var a0 = vec4<i32>();
    var a1 = vec4<i32>();
    var a2 = vec4<i32>();
    var a3 = vec4<i32>();
    var b0 = vec4<i32>();
    var b1 = vec4<i32>();
    var b2 = vec4<i32>();
    var b3 = vec4<i32>();
    var of_pixels = vec4<i32>();
    var of_a = vec4<i32>();
    var of_b = vec4<i32>();
    var counted = 0;
    let size = vec3<u32>(
        params.x_last - params.x_first,
        params.y_last - params.y_first,
        params.z_last - params.z_first);
    let start = vec3<u32>(params.x_first, params.y_first, params.z_first);
    let taps = size.x * size.y * size.z;
    for (var t = 0u; t < taps; t++) {
        let line = t / size.x;
        let tap = start + vec3<u32>(t % size.x, line % size.y, line / size.y);
        let p0 = place_of(image, pixel0, tap);
        let p1 = place_of(image, pixel1, tap);
        let p2 = place_of(image, pixel2, tap);
        let p3 = place_of(image, pixel3, tap);
        // Taps outside for all pixels add nothing, unless the bias was made for them.
        let none = (p0 & p1 & p2 & p3) == 0xffffffffu;
        if (none && ((SUMS & 1u) != 0u || x_zero == 0)) { continue; }
        counted += i32(params.c_last - params.c_first);
        let number_of_tap = (tap.z * params.kh + tap.y) * params.kw + tap.x;
        var at = ((number_of_tap * depth + first) * params.columns + column) * 8u;
        for (var c = first; c < last; c++) {
            let v0 = four_of(p0, c, padding);
            let v1 = four_of(p1, c, padding);
            let v2 = four_of(p2, c, padding);
            let v3 = four_of(p3, c, padding);
            a0 += products(v0, at);
            a1 += products(v1, at);
            a2 += products(v2, at);
            a3 += products(v3, at);
            b0 += products(v0, at + 4u);
            b1 += products(v1, at + 4u);
            b2 += products(v2, at + 4u);
            b3 += products(v3, at + 4u);
            if ((SUMS & 1u) != 0u) {
                of_a += products(ones, at);
                of_b += products(ones, at + 4u);
            }
            if ((SUMS & 2u) != 0u) {
                // Lanes beyond ic belong to the next pixel.
                let lanes = min(params.ic - 4u * c, 4u);
                let some = ones >> (32u - 8u * lanes);
                of_pixels += vec4<i32>(
                    dot4I8Packed(v0, some), dot4I8Packed(v1, some),
                    dot4I8Packed(v2, some), dot4I8Packed(v3, some));
            }
            at += 8u * params.columns;
        }
    }
    var off_a = vec4<i32>();
    var off_b = vec4<i32>();
    if ((SUMS & 1u) != 0u) {
        off_a = (of_a - counted * w_zero) * x_zero;
        off_b = (of_b - counted * w_zero) * x_zero;
    }
    let off = of_pixels * w_zero;
    let channel = 8u * column;
    finish(image, number, channel, a0 - off_a - off.x, b0 - off_b - off.x);
    finish(image, number + 1u, channel, a1 - off_a - off.y, b1 - off_b - off.y);
    finish(image, number + 2u, channel, a2 - off_a - off.z, b2 - off_b - off.z);
    finish(image, number + 3u, channel, a3 - off_a - off.w, b3 - off_b - off.w);
}
