// CONV2D, CONV3D and gathered TRANSPOSE_CONV2D of integers (docs/kernel-interface.md).
//
// One invocation owns four pixels by eight channels. Weights [kz][ky][kx][input channel] are rows of
// 2 * columns words of four INT8. `bias` is [zero point of x, of w, bias], an INT48 bias as pairs.

override WORKGROUP: u32 = 64;
override OP: u32;
override X_TYPE: u32;
override FOURS: u32;

fn two_words() -> bool { return X_TYPE == INT16; }

// First element under a tap, and whether the tap lies in the input.
struct Place { at: u32, present: bool }

fn place_of(image: u32, pixel: vec3<u32>, tap: vec3<u32>) -> Place {
    let ix = source(pixel.x, tap.x, params.sx, params.dx, params.pad_left, params.iw);
    let iy = source(pixel.y, tap.y, params.sy, params.dy, params.pad_top, params.ih);
    let iz = pixel.z * params.sz + tap.z * params.dz - params.pad_front;
    let present = ix < params.iw && iy < params.ih && iz < params.id;
    let line = (image * params.id + iz) * params.ih + iy;
    return Place(select(0u, (line * params.iw + ix) * params.ic, present), present);
}

fn value_at(spot: Place, channel: u32, zero_point: i32) -> i32 {
    if (!spot.present) { return 0; }
    let e = spot.at + channel;
    return widen_int(X_TYPE, lane_bits(x[e / lanes_of(X_TYPE)], X_TYPE, e)) - zero_point;
}

fn store(at: u32, channel: u32, low: i32, high: i32) {
    if (channel >= params.oc) { return; }
    if (two_words()) {
        let from_word = 2u + 2u * channel * params.bias_step;
        var before = vec2<i32>(bias[from_word], bias[from_word + 1u]);
        if (continues()) { before = vec2<i32>(y[at * 2u], y[at * 2u + 1u]); }
        let v = with_bias(low, high, before.x, before.y);
        y[at * 2u] = v.x;
        y[at * 2u + 1u] = v.y;
    } else if (continues()) {
        y[at] += low;
    } else {
        y[at] = low + bias[2u + channel * params.bias_step];
    }
}

fn store4(at: u32, channel: u32, sums: Sums) {
    store(at, channel, sums.low.x, sums.high.x);
    store(at + 1u, channel + 1u, sums.low.y, sums.high.y);
    store(at + 2u, channel + 2u, sums.low.z, sums.high.z);
    store(at + 3u, channel + 3u, sums.low.w, sums.high.w);
}

fn finish(image: u32, number: u32, channel: u32, a: Sums, b: Sums) {
    let pixels = params.od * params.oh * params.ow;
    if (number >= pixels) { return; }
    let to = (image * pixels + number) * params.oc + channel;
    store4(to, channel, a);
    store4(to + 4u, channel + 4u, b);
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
    let w_zero = vec4<i32>(bias[1]);
    var a0 = Sums();
    var a1 = Sums();
    var a2 = Sums();
    var a3 = Sums();
    var b0 = Sums();
    var b1 = Sums();
    var b2 = Sums();
    var b3 = Sums();
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
        if (!(p0.present || p1.present || p2.present || p3.present)) { continue; }
        let number_of_tap = (tap.z * params.kh + tap.y) * params.kw + tap.x;
        let row = number_of_tap * params.ic + params.c_first;
        var at = (row * params.columns + column) * 2u;
        for (var c = params.c_first; c < params.c_last; c++) {
            let wa = four_bytes(w[at]) - w_zero;
            let wb = four_bytes(w[at + 1u]) - w_zero;
            at += 2u * params.columns;
            let v0 = value_at(p0, c, x_zero);
            let v1 = value_at(p1, c, x_zero);
            let v2 = value_at(p2, c, x_zero);
            let v3 = value_at(p3, c, x_zero);
            a0 = plus(a0, v0 * wa, two_words());
            a1 = plus(a1, v1 * wa, two_words());
            a2 = plus(a2, v2 * wa, two_words());
            a3 = plus(a3, v3 * wa, two_words());
            b0 = plus(b0, v0 * wb, two_words());
            b1 = plus(b1, v1 * wb, two_words());
            b2 = plus(b2, v2 * wb, two_words());
            b3 = plus(b3, v3 * wb, two_words());
        }
    }
    let channel = 8u * column;
    finish(image, number, channel, a0, b0);
    finish(image, number + 1u, channel, a1, b1);
    finish(image, number + 2u, channel, a2, b2);
    finish(image, number + 3u, channel, a3, b3);
}
