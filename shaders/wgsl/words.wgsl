// Integers beyond 32 bits as sign and magnitude, the magnitude in two words: x low, y high.

struct Wide { magnitude: vec2<u32>, negative: bool }

fn absolute(v: i32) -> u32 { return select(bitcast<u32>(v), 0u - bitcast<u32>(v), v < 0); }

// The 64-bit product of two words, by 16-bit halves.
fn full_product(a: u32, b: u32) -> vec2<u32> {
    let low = (a & 0xffffu) * (b & 0xffffu);
    let cross = (a >> 16u) * (b & 0xffffu) + (low >> 16u);
    let other = (a & 0xffffu) * (b >> 16u) + (cross & 0xffffu);
    let high = (a >> 16u) * (b >> 16u) + (cross >> 16u) + (other >> 16u);
    return vec2<u32>((other << 16u) | (low & 0xffffu), high);
}

fn added(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let low = a.x + b.x;
    return vec2<u32>(low, a.y + b.y + select(0u, 1u, low < b.x));
}

fn product(a: i32, b: i32) -> Wide {
    return Wide(full_product(absolute(a), absolute(b)), (a < 0) != (b < 0));
}

// A number as two's complement.
fn complement(v: Wide) -> vec2<u32> {
    if (!v.negative) { return v.magnitude; }
    return added(~v.magnitude, vec2<u32>(1u, 0u));
}

// TOSA's apply_scale: v / 2^shift, halves towards plus infinity. Double rounding (`twice`) adds 2^30
// to the magnitude where more than 31 places are dropped. Magnitudes are rounded up from a half,
// those of negative numbers only from more than a half. What does not fit INT32 is its limit.
fn scaled_down(v: Wide, wanted_shift: u32, twice: bool) -> i32 {
    let shift = clamp(wanted_shift, 2u, 62u);
    let place = shift - 1u;
    var half = vec2<u32>(0u, 1u << (place & 31u));
    if (place < 32u) { half = half.yx; }
    var sum = added(v.magnitude, half);
    if (v.negative) { sum = added(sum, vec2<u32>(0xffffffffu, 0xffffffffu)); }
    if (twice && shift > 31u) { sum = added(sum, vec2<u32>(0x40000000u, 0u)); }
    var low = sum.y >> (shift & 31u);
    var high = 0u;
    if (shift < 32u) {
        low = (sum.x >> shift) | (sum.y << (32u - shift));
        high = sum.y >> shift;
    }
    let limit = select(0x7fffffffu, 0x80000000u, v.negative);
    if (high != 0u || low > limit) { low = limit; }
    return bitcast<i32>(select(low, 0u - low, v.negative));
}
