// Takes the real (PART 0) or the imaginary part (PART 1) of a finished transform. Where fft_load has
// found infinities or NaNs in the image, the part follows from them alone, by the definition's sum of
// products: infinite if all products are infinite with one sign, else NaN.

override WORKGROUP: u32 = 64;
override PART: u32;
override REAL: u32;

struct Params {
    count: u32, rows: u32, height: u32, width: u32, columns: u32, inverse: u32,
    zero: u32,
}

@group(0) @binding(0) var<storage, read_write> z: array<vec2<u32>>;
@group(0) @binding(1) var<storage, read_write> special: array<u32>;
@group(0) @binding(2) var<storage, read_write> y: array<u32>;
@group(0) @binding(3) var<uniform> params: Params;

// Sign of sin(2 pi * turn / whole) as -1, 0 or 1.
fn sine(turn: u32, whole: u32) -> i32 {
    let twice = 2u * (turn % whole);
    if (twice == 0u || twice == whole) { return 0; }
    return select(-1, 1, twice < whole);
}

// Sign of the cosine; in quarters, since a whole of 1 or 2 has no quarter.
fn cosine(turn: u32, whole: u32) -> i32 { return sine(4u * turn + whole, 4u * whole); }

// The outcome of factor * element in two bits: +inf 1, -inf 2, NaN 3; 0 when the element is finite.
fn outcome(kind: u32, factor: i32) -> u32 {
    switch (kind) {
        case 0u: { return 0u; }
        case 3u: { return 3u; }
        default: {
            if (factor == 0) { return 3u; }
            return select(2u, 1u, (factor > 0) == (kind == 1u));
        }
    }
}

fn outcome_of(image: u32, v: u32, u: u32) -> u32 {
    let whole = max(params.height, params.width);
    let step_y = whole / params.height;
    let step_x = whole / params.width;
    let first = image * params.height;
    // The factor of the sine: minus for the imaginary part, and minus again for the inverse.
    let turned = select(1, -1, (PART == 1u) != (params.inverse == 1u));
    var all = 0u;
    for (var h = 0u; h < params.height; h++) {
        let found = special[first + h];
        let base = params.rows + (first + h) * params.width;
        let down = v * h % params.height * step_y;
        for (var n = 0u; n < found; n++) {
            let entry = special[base + n];
            let turn = (down + u * (entry >> 4u) % params.width * step_x) % whole;
            var by_cosine = entry & 3u;
            var by_sine = entry >> 2u & 3u;
            if (PART == 1u) {
                by_cosine = entry >> 2u & 3u;
                by_sine = entry & 3u;
            }
            all |= outcome(by_cosine, cosine(turn, whole));
            all |= outcome(by_sine, turned * sine(turn, whole));
            if (all == 3u) { return 3u; }
        }
    }
    return all;
}

fn symmetric(v: u32, u: u32) -> bool {
    return v * 2u % params.height == 0u && u * 2u % params.width == 0u;
}

@compute @workgroup_size(WORKGROUP)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = linear_invocation(group, groups, WORKGROUP, lane);
    if (i >= params.count) { return; }
    let u = i % params.columns;
    let row = i / params.columns;
    let v = row % params.height;
    let number = z[row * params.width + u];
    var bits = number.x;
    if (PART == 1u) { bits = number.y; }
    if ((bits & 0x7f800000u) == 0x7f800000u && (bits & 0x7fffffu) != 0u) { bits = 0x7fc00000u; }
    // Passes keep infinities and NaNs in at least one part: if both are finite, so is the image.
    var found = 0u;
    if (any((number & vec2<u32>(0x7f800000u)) == vec2<u32>(0x7f800000u))) {
        found = outcome_of(row / params.height, v, u);
    }
    switch (found) {
        case 1u: { bits = 0x7f800000u; }
        case 2u: { bits = 0xff800000u; }
        case 3u: { bits = 0x7fc00000u; }
        default: {}
    }
    if (REAL == 1u && PART == 1u && symmetric(v, u)) { bits = 0u; }
    y[i] = bits;
}
