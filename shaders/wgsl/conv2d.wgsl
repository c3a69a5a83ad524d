// CONV2D and gathered TRANSPOSE_CONV2D of FP32, NHWC (docs/kernel-interface.md).
//
// One invocation owns four pixels by eight channels. Weights [ky][kx][input channel] are rows of
// 2 * columns vectors. Every product and every sum is fenced on its own. With PART a dispatch sums the taps
// and channels from *_first up to *_last on top of what y holds of earlier ones; the one that has the
// last term adds the bias.

override WORKGROUP: u32 = 64;
override OP: u32;
override FOURS: u32;
override SKIP: u32;
override PART: u32;

struct Params {
    count: u32, columns: u32, tiles: u32,
    ih: u32, iw: u32, ic: u32,
    oh: u32, ow: u32, oc: u32,
    kh: u32, kw: u32, sy: u32, sx: u32, dy: u32, dx: u32,
    pad_top: u32, pad_left: u32,
    y_first: u32, y_last: u32, x_first: u32, x_last: u32, c_first: u32, c_last: u32,
    zero: u32,
}

fn transposed() -> bool { return OP == 10u; }

// The input coordinate under tap `k` of output coordinate `at`, or `size` when there is none.
fn source(at: u32, k: u32, stride: u32, dilation: u32, pad: u32, size: u32) -> u32 {
    var place = at * stride + k * dilation - pad;
    if (transposed()) {
        let distance = at - k - pad;
        place = distance / stride;
        if (distance % stride != 0u) { place = size; }
    }
    return min(place, size);
}

// Column of the n-th pixel that a row gives. Transposed rows are dealt out by residue modulo the
// stride, so that the pixels of one invocation share their taps.
fn column_of(n: u32) -> u32 {
    if (!transposed()) { return n; }
    let modulus = min(params.sx, params.ow);
    var rest = n;
    var residue = 0u;
    let short = params.ow / modulus;
    let long_residues = params.ow % modulus;
    if (rest < long_residues * (short + 1u)) {
        residue = rest / (short + 1u);
        rest = rest % (short + 1u);
    } else {
        rest -= long_residues * (short + 1u);
        residue = long_residues + rest / short;
        rest = rest % short;
    }
    return residue + rest * modulus;
}

// First element under a tap, and whether the tap lies in the input.
struct Place { at: u32, present: bool }

fn place_of(image: u32, row: u32, col: u32, ky: u32, kx: u32) -> Place {
    let iy = source(row, ky, params.sy, params.dy, params.pad_top, params.ih);
    let ix = source(col, kx, params.sx, params.dx, params.pad_left, params.iw);
    let present = iy < params.ih && ix < params.iw;
    let at = ((image * params.ih + iy) * params.iw + ix) * params.ic;
    return Place(select(0u, at, present), present);
}

fn value_at(place: Place, channel: u32) -> f32 {
    let v = x[place.at + channel];
    if (SKIP != 0u) { return v; }
    return select(0.0, v, place.present);
}

fn ends() -> bool {
    return PART == 0u || (params.y_last == params.kh && params.x_last == params.kw
        && params.c_last == params.ic);
}

fn finish(pixel: u32, image: u32, row: u32, col: u32, column: u32, a: vec4<f32>, b: vec4<f32>) {
    if (pixel >= params.oh * params.ow) { return; }
    let channel = 8u * column;
    let to = ((image * params.oh + row) * params.ow + col) * params.oc + channel;
    if (!ends()) {
        store4(to, channel, a);
        store4(to + 4u, channel + 4u, b);
        return;
    }
    store4(to, channel, fence4(a + bias[2u * column]));
    store4(to + 4u, channel + 4u, fence4(b + bias[2u * column + 1u]));
}

// Four sums of a pixel that another dispatch left; 0 where there are none.
fn begun(pixel: u32, image: u32, row: u32, col: u32, channel: u32) -> vec4<f32> {
    var v = vec4<f32>();
    if (PART == 0u || max(params.y_first, max(params.x_first, params.c_first)) == 0u) {
        return v;
    }
    if (pixel >= params.oh * params.ow) { return v; }
    let at = ((image * params.oh + row) * params.ow + col) * params.oc + channel;
    if (channel < params.oc) { v.x = y[at]; }
    if (channel + 1u < params.oc) { v.y = y[at + 1u]; }
    if (channel + 2u < params.oc) { v.z = y[at + 2u]; }
    if (channel + 3u < params.oc) { v.w = y[at + 3u]; }
    return v;
}

fn store4(at: u32, channel: u32, v: vec4<f32>) {
    if (channel < params.oc) { y[at] = v.x; }
    if (channel + 1u < params.oc) { y[at + 1u] = v.y; }
    if (channel + 2u < params.oc) { y[at + 2u] = v.z; }
    if (channel + 3u < params.oc) { y[at + 3u] = v.w; }
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
    // The four pixels, written out: loops with constant bounds stay loops here.
    let pixel = (tile % params.tiles) * 4u + vec4<u32>(0u, 1u, 2u, 3u);
    let row = pixel / params.ow;
    let rest = pixel % params.ow;
    let col = vec4<u32>(
        column_of(rest.x), column_of(rest.y), column_of(rest.z), column_of(rest.w));

    let low = 8u * column;
    let high = low + 4u;
    var a0 = begun(pixel.x, image, row.x, col.x, low);
    var a1 = begun(pixel.y, image, row.y, col.y, low);
    var a2 = begun(pixel.z, image, row.z, col.z, low);
    var a3 = begun(pixel.w, image, row.w, col.w, low);
    var b0 = begun(pixel.x, image, row.x, col.x, high);
    var b1 = begun(pixel.y, image, row.y, col.y, high);
    var b2 = begun(pixel.z, image, row.z, col.z, high);
    var b3 = begun(pixel.w, image, row.w, col.w, high);
    let row_vectors = 2u * params.columns;
    for (var ky = params.y_first; ky < params.y_last; ky++) {
        for (var kx = params.x_first; kx < params.x_last; kx++) {
            let p0 = place_of(image, row.x, col.x, ky, kx);
            let p1 = place_of(image, row.y, col.y, ky, kx);
            let p2 = place_of(image, row.z, col.z, ky, kx);
            let p3 = place_of(image, row.w, col.w, ky, kx);
            if (transposed() && !(p0.present || p1.present || p2.present || p3.present)) {
                continue;
            }
            let first_row = (ky * params.kw + kx) * params.ic + params.c_first;
            var at = first_row * row_vectors + 2u * column;
            for (var c = params.c_first; c < params.c_last; c++) {
                let wa = w[at];
                let wb = w[at + 1u];
                at += row_vectors;
                let v0 = value_at(p0, c);
                let v1 = value_at(p1, c);
                let v2 = value_at(p2, c);
                let v3 = value_at(p3, c);
                a0 = step4(a0, v0, wa, p0.present);
                a1 = step4(a1, v1, wa, p1.present);
                a2 = step4(a2, v2, wa, p2.present);
                a3 = step4(a3, v3, wa, p3.present);
                b0 = step4(b0, v0, wb, p0.present);
                b1 = step4(b1, v1, wb, p1.present);
                b2 = step4(b2, v2, wb, p2.present);
                b3 = step4(b3, v3, wb, p3.present);
            }
        }
    }
    finish(pixel.x, image, row.x, col.x, column, a0, b0);
    finish(pixel.y, image, row.y, col.y, column, a1, b1);
    finish(pixel.z, image, row.z, col.z, column, a2, b2);
    finish(pixel.w, image, row.w, col.w, column, a3, b3);
}
