// Strict FP32 functions, the WGSL twin of glsl/math.glsl: same rounding steps, so same bits, but
// its own text. docs/numerics.md describes the algorithms.
//
// WGSL cannot forbid a driver to rewrite float expressions (naga drops NoContraction), so every
// rounded result goes through fence(): an XOR with a word that only the run time knows to be zero.
// The kernel this file is joined with declares `params` with a member `zero`.

fn fence(v: f32) -> f32 { return bitcast<f32>(bitcast<u32>(v) ^ params.zero); }

fn r_add(a: f32, b: f32) -> f32 { return fence(a + b); }

fn r_sub(a: f32, b: f32) -> f32 { return fence(a - b); }

fn r_mul(a: f32, b: f32) -> f32 { return fence(a * b); }

// acc * x + c, rounded twice: one step of a polynomial.
fn r_step(acc: f32, x: f32, c: f32) -> f32 { return r_add(r_mul(acc, x), c); }

fn bits_of(v: f32) -> u32 { return bitcast<u32>(v); }

// A function, because a constant expression may not make an infinity or a NaN.
fn float_of(bits: u32) -> f32 { return bitcast<f32>(bits); }

fn without_sign(v: f32) -> u32 { return bits_of(v) & 0x7fffffffu; }

fn is_nan(v: f32) -> bool { return without_sign(v) > 0x7f800000u; }

fn is_inf(v: f32) -> bool { return without_sign(v) == 0x7f800000u; }

fn nan_value() -> f32 { return float_of(0x7fc00000u); }

fn exact_power(k: i32) -> f32 { return float_of(u32(k + 127) << 23u); }

// A finite nonzero magnitude as fraction * 2^(exponent - 23), fraction in [2^23, 2^24).
struct Parts { fraction: u32, exponent: i32 }

fn parts_of(magnitude: u32) -> Parts {
    if (magnitude >= 0x00800000u) {
        return Parts((magnitude & 0x007fffffu) | 0x00800000u, i32(magnitude >> 23u) - 127);
    }
    let shift = countLeadingZeros(magnitude) - 8u;
    return Parts(magnitude << shift, -126 - i32(shift));
}

// v / 2^count to nearest even, count in [1, 31].
fn drop_bits(v: u32, count: u32) -> u32 {
    let bias = (1u << (count - 1u)) - 1u + ((v >> count) & 1u);
    return (v + bias) >> count;
}

// Rounds `wide`, 25 bits and a sticky bit, standing for wide * 2^(exponent - 25).
fn rounded_bits(sign: u32, exponent: i32, wide: u32) -> u32 {
    let biased = exponent + 127;
    if (biased > 254) { return sign | 0x7f800000u; }
    if (biased > 0) { return (sign | (u32(biased - 1) << 23u)) + drop_bits(wide, 2u); }
    if (biased > -26) { return sign | drop_bits(wide, u32(3 - biased)); }
    return sign;
}

// v * 2^k for a normal v, with overflow to infinity and correct rounding of a subnormal result.
fn scale_by(v: f32, k: i32) -> f32 {
    let bits = bits_of(v);
    let biased = i32((bits >> 23u) & 255u) + k;
    var magnitude = 0x7f800000u;
    if (biased < -24) {
        magnitude = 0u;
    } else if (biased < 1) {
        magnitude = drop_bits((bits & 0x007fffffu) | 0x00800000u, u32(1 - biased));
    } else if (biased < 255) {
        magnitude = (u32(biased) << 23u) | (bits & 0x007fffffu);
    }
    return float_of((bits & 0x80000000u) | magnitude);
}

// The mask is known to the run time only: with a constant one lavapipe 25 takes the magnitude of
// `source` in its place (docs/known-issues.md).
fn with_sign_of(v: f32, source: f32) -> f32 {
    let mask = 0x80000000u ^ params.zero;
    return float_of((bits_of(v) & 0x7fffffffu) | (bits_of(source) & mask));
}

// ---------------------------------------------------------------- unevaluated sums of two floats

struct Pair { high: f32, low: f32 }

// high + low when high is the larger one.
fn pair_sum(high: f32, low: f32) -> Pair {
    let sum = r_add(high, low);
    return Pair(sum, r_sub(low, r_sub(sum, high)));
}

// The exact product; the halves have 12 bits each, so that no partial product is rounded.
fn exact_product(a: f32, b: f32) -> Pair {
    let a_top = float_of(bits_of(a) & 0xfffff000u);
    let b_top = float_of(bits_of(b) & 0xfffff000u);
    let a_rest = r_sub(a, a_top);
    let b_rest = r_sub(b, b_top);
    let rounded = r_mul(a, b);
    let e0 = r_sub(r_mul(a_top, b_top), rounded);
    let e1 = r_add(e0, r_mul(a_top, b_rest));
    let e2 = r_add(e1, r_mul(a_rest, b_top));
    return Pair(rounded, r_add(e2, r_mul(a_rest, b_rest)));
}

fn near_reciprocal(d: f32) -> f32 {
    var guess = float_of(0x7ef311c7u - bits_of(d));
    for (var pass_index = 0u; pass_index < 3u; pass_index++) {
        guess = r_mul(guess, r_sub(2.0, r_mul(d, guess)));
    }
    return guess;
}

fn divide_pairs(top: Pair, bottom: Pair) -> f32 {
    let inverse = near_reciprocal(bottom.high);
    let first = r_mul(top.high, inverse);
    let back = exact_product(first, bottom.high);
    let missing = r_sub(r_sub(r_sub(top.high, back.high), back.low), r_mul(first, bottom.low));
    return r_add(first, r_mul(r_add(missing, top.low), inverse));
}

// ---------------------------------------------------------------- division and square root

// Correctly rounded: long division of the significands, eight quotient bits at a time.
fn strict_divide(a: f32, b: f32) -> f32 {
    let sign = (bits_of(a) ^ bits_of(b)) & 0x80000000u;
    let a_mag = without_sign(a);
    let b_mag = without_sign(b);
    if (a_mag > 0x7f800000u || b_mag > 0x7f800000u) { return nan_value(); }
    let a_special = a_mag == 0u || a_mag == 0x7f800000u;
    if (a_special && a_mag == b_mag) { return nan_value(); }
    if (a_mag == 0x7f800000u || b_mag == 0u) { return float_of(sign | 0x7f800000u); }
    if (a_mag == 0u || b_mag == 0x7f800000u) { return float_of(sign); }
    let top = parts_of(a_mag);
    let bottom = parts_of(b_mag);
    let smaller = select(0u, 1u, top.fraction < bottom.fraction);
    // One quotient bit first, then the remainder stays below 2^24 and 8 more bits fit a word.
    var rest = (top.fraction << smaller) - bottom.fraction;
    var quotient = 1u;
    for (var digit_index = 0u; digit_index < 3u; digit_index++) {
        let shifted = rest << 8u;
        let digit = shifted / bottom.fraction;
        quotient = (quotient << 8u) | digit;
        rest = shifted - digit * bottom.fraction;
    }
    let wide = (quotient << 1u) | select(0u, 1u, rest != 0u);
    let exponent = top.exponent - bottom.exponent - i32(smaller);
    return float_of(rounded_bits(sign, exponent, wide));
}

fn strict_reciprocal(x: f32) -> f32 { return strict_divide(1.0, x); }

// Correctly rounded: the integer square root, one bit at a time.
fn strict_sqrt(x: f32) -> f32 {
    let magnitude = without_sign(x);
    if (magnitude == 0u) { return x; }
    if (bits_of(x) > 0x7f800000u) { return nan_value(); }
    if (magnitude == 0x7f800000u) { return x; }
    let parts = parts_of(magnitude);
    let odd = u32(parts.exponent & 1);
    var radicand = (parts.fraction << odd) << 7u;
    var root = 0u;
    var rest = 0u;
    for (var bit_index = 0u; bit_index < 25u; bit_index++) {
        rest = (rest << 2u) | (radicand >> 30u);
        radicand <<= 2u;
        let trial = (root << 2u) | 1u;
        root <<= 1u;
        if (rest >= trial) {
            rest -= trial;
            root |= 1u;
        }
    }
    let wide = (root << 1u) | select(0u, 1u, rest != 0u);
    return float_of(rounded_bits(0u, (parts.exponent - i32(odd)) / 2, wide));
}

fn strict_rsqrt(x: f32) -> f32 {
    let magnitude = without_sign(x);
    if (magnitude == 0u) { return float_of(bits_of(x) | 0x7f800000u); }
    if (bits_of(x) > 0x7f800000u) { return nan_value(); }
    if (magnitude == 0x7f800000u) { return 0.0; }
    let parts = parts_of(magnitude);
    let odd = parts.exponent & 1;
    let m = r_mul(f32(parts.fraction << u32(odd)), 0x1p-23f);
    let half_m = r_mul(m, 0.5);
    var y = float_of(0x5f3759dfu - (bits_of(m) >> 1u));
    for (var pass_index = 0u; pass_index < 3u; pass_index++) {
        y = r_mul(y, r_sub(1.5, r_mul(half_m, r_mul(y, y))));
    }
    // Last step with the residue 1 - m*y*y taken exactly enough.
    let my = exact_product(m, y);
    let myy = exact_product(my.high, y);
    let residue = r_sub(r_sub(r_sub(1.0, myy.high), myy.low), r_mul(my.low, y));
    return scale_by(r_add(y, r_mul(r_mul(y, 0.5), residue)), -((parts.exponent - odd) / 2));
}

// ---------------------------------------------------------------- exponential and logarithm

// e^(a + b) = (high + low) * 2^power, high near [0.7, 1.42], low below half its last place.
struct Power { high: f32, low: f32, power: i32 }

fn exp_parts(a: f32, b: f32) -> Power {
    // 1.5 * 2^23 pushes the fraction out: the integer is in the low bits.
    let pushed = r_add(r_mul(a, 1.44269502), 12582912.0);
    let n = r_sub(pushed, 12582912.0);
    let coarse = r_sub(a, r_mul(n, 0.693145751953125));
    let fine = r_mul(n, 1.42860677e-06);
    let near = r_sub(coarse, fine);
    let r = pair_sum(near, r_add(r_sub(r_sub(coarse, near), fine), b));
    var poly = r_step(0.000197426911, r.high, 0.00139359338);
    poly = r_step(poly, r.high, 0.00833356939);
    poly = r_step(poly, r.high, 0.0416664556);
    poly = r_step(poly, r.high, 0.166666657);
    poly = r_step(poly, r.high, 0.5);
    let one_r = r_add(1.0, r.high);
    let tail = r_add(r_mul(r_mul(r.high, r.high), poly), r_mul(r.low, one_r));
    let e = pair_sum(one_r, r_add(r_add(r_sub(1.0, one_r), r.high), tail));
    return Power(e.high, e.low, bitcast<i32>(bits_of(pushed)) - 0x4b400000);
}

fn strict_exp(x: f32) -> f32 {
    let magnitude = without_sign(x);
    let negative = bits_of(x) > 0x7fffffffu;
    if (magnitude > 0x7f800000u) { return nan_value(); }
    if (magnitude < 0x32800000u) { return 1.0; }
    if (!negative && magnitude >= 0x42b20000u) { return float_of(0x7f800000u); }
    if (negative && magnitude >= 0x42d00000u) { return 0.0; }
    let e = exp_parts(x, 0.0);
    return scale_by(e.high, e.power);
}

// log of a finite nonzero magnitude: with m in [sqrt(1/2), sqrt(2)) and u = (m - 1) / (m + 1) as
// a pair, k log 2 + 2 atanh(u).
fn log_parts(magnitude: u32) -> Pair {
    let parts = parts_of(magnitude);
    let large = parts.fraction >= 0x00b504f3u;
    let k = f32(parts.exponent + select(0, 1, large));
    let m = float_of((parts.fraction & 0x007fffffu) | select(0x3f800000u, 0x3f000000u, large));
    let above = r_add(m, 1.0);
    let above_low = r_sub(m, r_sub(above, 1.0));
    let below = r_sub(m, 1.0);
    let inverse = near_reciprocal(above);
    let first = r_mul(below, inverse);
    let back = exact_product(first, above);
    let missing = r_sub(r_sub(r_sub(below, back.high), back.low), r_mul(first, above_low));
    let u = pair_sum(first, r_mul(missing, inverse));
    let z = r_mul(u.high, u.high);
    var poly = r_step(0.546662867, z, 0.196107566);
    poly = r_step(poly, z, 0.286367595);
    poly = r_step(poly, z, 0.399993539);
    poly = r_step(poly, z, 0.666666687);
    let twice_low = r_mul(2.0, u.low);
    let series = r_add(r_mul(u.high, r_mul(z, poly)), r_add(twice_low, r_mul(twice_low, z)));
    let head = pair_sum(r_mul(k, 0.693145751953125), r_mul(2.0, u.high));
    return pair_sum(head.high, r_add(head.low, r_add(series, r_mul(k, 1.42860677e-06))));
}

fn strict_log(x: f32) -> f32 {
    let magnitude = without_sign(x);
    if (magnitude == 0u) { return float_of(0xff800000u); }
    if (bits_of(x) > 0x7f800000u) { return nan_value(); }
    if (magnitude == 0x7f800000u) { return x; }
    if (magnitude == 0x3f800000u) { return 0.0; }
    return log_parts(magnitude).high;
}

// 0: not an integer, 1: odd, 2: even (infinity counts as even).
fn integer_kind(magnitude: u32) -> u32 {
    let biased = magnitude >> 23u;
    if (biased < 127u) { return select(0u, 2u, magnitude == 0u); }
    if (biased > 150u) { return 2u; }
    let unit = 1u << (150u - biased);
    let fraction = (magnitude & 0x007fffffu) | 0x00800000u;
    if ((fraction & (unit - 1u)) != 0u) { return 0u; }
    return select(2u, 1u, (fraction & unit) != 0u);
}

// |x|^y for |x| neither 0, 1, infinite nor NaN and y finite and not 0.
fn positive_pow(x_mag: u32, y: f32) -> f32 {
    let log_x = log_parts(x_mag);
    let grows = (bits_of(log_x.high) >> 31u) == (bits_of(y) >> 31u);
    var limit = 0.0;
    if (grows) { limit = float_of(0x7f800000u); }
    // Far results are told by the exponents, before a product could leave the range.
    let size = i32(without_sign(y) >> 23u) + i32(without_sign(log_x.high) >> 23u) - 254;
    if (size > 7) { return limit; }
    if (size < -28) { return 1.0; }
    let product = exact_product(y, log_x.high);
    let t = pair_sum(product.high, r_add(product.low, r_mul(y, log_x.low)));
    if (without_sign(t.high) >= select(0x42d20000u, 0x42b20000u, grows)) { return limit; }
    let e = exp_parts(t.high, t.low);
    return scale_by(e.high, e.power);
}

fn strict_pow(x: f32, y: f32) -> f32 {
    let x_mag = without_sign(x);
    let y_mag = without_sign(y);
    if (y_mag == 0u || bits_of(x) == 0x3f800000u) { return 1.0; }
    if (is_nan(x) || is_nan(y)) { return nan_value(); }
    let falling = bits_of(y) > 0x7fffffffu;
    let kind = integer_kind(y_mag);
    var result = 1.0;
    if (x_mag == 0u || x_mag == 0x7f800000u) {
        result = float_of(select(0u, 0x7f800000u, (x_mag == 0u) == falling));
    } else if (y_mag == 0x7f800000u) {
        if (x_mag != 0x3f800000u) {
            result = float_of(select(0u, 0x7f800000u, (x_mag < 0x3f800000u) == falling));
        }
    } else if (bits_of(x) > 0x7fffffffu && kind == 0u) {
        return nan_value();
    } else if (x_mag != 0x3f800000u) {
        result = positive_pow(x_mag, y);
    }
    if (kind == 1u) { result = with_sign_of(result, x); }
    return result;
}

// ---------------------------------------------------------------- sine and cosine

// Word `index` of 2/pi behind one word of zeros.
fn inverse_half_pi(index: u32) -> u32 {
    switch (index) {
        case 1u: { return 0xa2f9836eu; }
        case 2u: { return 0x4e441529u; }
        case 3u: { return 0xfc2757d1u; }
        case 4u: { return 0xf534ddc0u; }
        case 5u: { return 0xdb629599u; }
        case 6u: { return 0x3c439041u; }
        case 7u: { return 0xfe5163abu; }
        default: { return 0u; }
    }
}

// 32 bits of that stream from bit `start` on.
fn pi_window(start: u32) -> u32 {
    let shift = start & 31u;
    let word = inverse_half_pi(start >> 5u);
    let next = inverse_half_pi((start >> 5u) + 1u);
    // Two shifts: a single one by 32 is undefined when shift is 0.
    return (word << shift) | ((next >> 1u) >> (31u - shift));
}

// High word of the 64-bit product, by 16-bit halves.
fn product_high(a: u32, b: u32) -> u32 {
    let a0 = a & 0xffffu;
    let a1 = a >> 16u;
    let b0 = b & 0xffffu;
    let b1 = b >> 16u;
    let middle = a1 * b0 + ((a0 * b0) >> 16u);
    let other = a0 * b1 + (middle & 0xffffu);
    return a1 * b1 + (middle >> 16u) + (other >> 16u);
}

struct Angle { high: f32, low: f32, quadrant: u32 }

// |x| = quadrant * pi/2 + high + low for a finite magnitude of at least 0.5, however large.
fn reduce_angle(magnitude: u32) -> Angle {
    let fraction = (magnitude & 0x007fffffu) | 0x00800000u;
    let start = (magnitude >> 23u) - 120u;
    let w1 = pi_window(start + 32u);
    let partial = product_high(fraction, pi_window(start + 64u));
    var low = fraction * w1 + partial;
    let carry = select(0u, 1u, low < partial);
    var high = fraction * pi_window(start) + product_high(fraction, w1) + carry;
    // Two integer bits on top, then 62 bits of fraction, turned into a signed distance.
    let quadrant = (high + 0x20000000u) >> 30u;
    high -= quadrant << 30u;
    let sign = high & 0x80000000u;
    if (sign != 0u) {
        low = 0u - low;
        high = select(~high, 0u - high, low == 0u);
    }
    var zeros = countLeadingZeros(high);
    if (high == 0u) {
        zeros = 32u + countLeadingZeros(low);
        high = low;
        low = 0u;
    }
    let shift = zeros & 31u;
    high = (high << shift) | ((low >> 1u) >> (31u - shift));
    low = low << shift;
    let unit = exact_power(-22 - i32(zeros));
    let f = r_mul(f32(high >> 8u), unit);
    let g = r_mul(r_mul(f32(((high & 255u) << 16u) | (low >> 16u)), unit), 0x1p-24f);
    let product = exact_product(f, 1.57079637);
    let rest = r_add(r_mul(f, -4.37113883e-08), r_mul(g, 1.57079637));
    let r = pair_sum(product.high, r_add(product.low, rest));
    return Angle(float_of(bits_of(r.high) ^ sign), float_of(bits_of(r.low) ^ sign), quadrant);
}

// sin(|x| + turns * pi/2)
fn sine_of(magnitude: u32, turns: u32) -> f32 {
    var angle = Angle(float_of(magnitude), 0.0, 0u);
    if (magnitude >= 0x3f000000u) { angle = reduce_angle(magnitude); }
    let r = angle.high;
    let z = r_mul(r, r);
    let quadrant = angle.quadrant + turns;
    var value: f32;
    if ((quadrant & 1u) == 1u) {
        var poly = r_step(-2.89181628e-07, z, 2.48224478e-05);
        poly = r_step(poly, z, -0.00138889812);
        poly = r_step(poly, z, 0.0416666679);
        let half_z = r_mul(0.5, z);
        let head = r_sub(1.0, half_z);
        let lost = r_sub(r_sub(1.0, head), half_z);
        let tail = r_sub(r_mul(r_mul(z, z), poly), r_mul(r, angle.low));
        value = r_add(head, r_add(lost, tail));
    } else {
        var poly = r_step(2.83171789e-06, z, -0.000198530252);
        poly = r_step(poly, z, 0.0083333794);
        poly = r_step(poly, z, -0.166666672);
        value = r_add(r, r_add(angle.low, r_mul(r_mul(poly, z), r)));
    }
    return float_of(bits_of(value) ^ ((quadrant >> 1u) << 31u));
}

fn strict_sin(x: f32) -> f32 {
    let magnitude = without_sign(x);
    if (magnitude >= 0x7f800000u) { return nan_value(); }
    if (magnitude < 0x39800000u) { return x; }
    return float_of(bits_of(sine_of(magnitude, 0u)) ^ (bits_of(x) & 0x80000000u));
}

fn strict_cos(x: f32) -> f32 {
    let magnitude = without_sign(x);
    if (magnitude >= 0x7f800000u) { return nan_value(); }
    if (magnitude < 0x39800000u) { return 1.0; }
    return sine_of(magnitude, 1u);
}

// ---------------------------------------------------------------- tanh, sigmoid, erf

// e^-a as a pair on its own scale, a >= 0; the scale stops at 2^-60, where it no longer matters.
fn decay_pair(e: Power) -> Pair {
    let unit = exact_power(max(e.power, -60));
    return Pair(r_mul(e.high, unit), r_mul(e.low, unit));
}

fn one_plus(t: Pair) -> Pair {
    let sum = r_add(1.0, t.high);
    return Pair(sum, r_add(r_add(r_sub(1.0, sum), t.high), t.low));
}

fn one_minus(t: Pair) -> Pair {
    let difference = r_sub(1.0, t.high);
    return Pair(difference, r_sub(r_sub(r_sub(1.0, difference), t.high), t.low));
}

fn strict_tanh(x: f32) -> f32 {
    let magnitude = without_sign(x);
    if (magnitude > 0x7f800000u) { return nan_value(); }
    if (magnitude < 0x39800000u) { return x; }
    if (magnitude >= 0x41110000u) { return with_sign_of(1.0, x); }
    if (magnitude >= 0x3f0ccccdu) {
        let t = decay_pair(exp_parts(r_mul(float_of(magnitude), -2.0), 0.0));
        return with_sign_of(divide_pairs(one_minus(t), one_plus(t)), x);
    }
    let z = r_mul(x, x);
    var poly = r_step(0.00217298488, z, -0.00821389537);
    poly = r_step(poly, z, 0.0217162129);
    poly = r_step(poly, z, -0.0539496243);
    poly = r_step(poly, z, 0.133332282);
    poly = r_step(poly, z, -0.333333313);
    return r_add(x, r_mul(r_mul(poly, z), x));
}

fn strict_sigmoid(x: f32) -> f32 {
    let magnitude = without_sign(x);
    let negative = bits_of(x) > 0x7fffffffu;
    if (magnitude > 0x7f800000u) { return nan_value(); }
    if (magnitude < 0x32800000u) { return 0.5; }
    if (negative && magnitude >= 0x42d00000u) { return 0.0; }
    if (!negative && magnitude >= 0x418c0000u) { return 1.0; }
    let e = exp_parts(float_of(magnitude | 0x80000000u), 0.0);
    let denominator = one_plus(decay_pair(e));
    if (negative) { return scale_by(divide_pairs(Pair(e.high, e.low), denominator), e.power); }
    return divide_pairs(Pair(1.0, 0.0), denominator);
}

fn strict_erf(x: f32) -> f32 {
    let magnitude = without_sign(x);
    if (magnitude > 0x7f800000u) { return nan_value(); }
    if (magnitude == 0u) { return x; }
    if (magnitude >= 0x407ae148u) { return with_sign_of(1.0, x); }
    if (magnitude >= 0x3f700000u) {
        let u = r_sub(float_of(magnitude), 2.0);
        var q = r_step(-0.000195195724, u, 0.000692226749);
        q = r_step(q, u, -0.00355367921);
        q = r_step(q, u, 0.0164920464);
        q = r_step(q, u, 0.92375797);
        q = r_step(q, u, 4.41816044);
        q = r_step(q, u, 5.36494112);
        let e = exp_parts(float_of(bits_of(q) ^ 0x80000000u), 0.0);
        let value = one_minus(decay_pair(e));
        return with_sign_of(r_add(value.high, value.low), x);
    }
    if (magnitude >= 0x39800000u) {
        let z = r_mul(x, x);
        var poly = r_step(3.85574958e-06, z, 6.99455923e-05);
        poly = r_step(poly, z, -0.000795210712);
        poly = r_step(poly, z, 0.005188026);
        poly = r_step(poly, z, -0.0268548541);
        poly = r_step(poly, z, 0.112836197);
        poly = r_step(poly, z, -0.376126289);
        poly = r_step(poly, z, 0.128379166);
        return r_add(x, r_mul(x, poly));
    }
    // Linear here; the significand alone is multiplied, so that a subnormal x does not matter.
    let parts = parts_of(magnitude);
    let f = float_of((parts.fraction & 0x007fffffu) | 0x3f800000u);
    return with_sign_of(scale_by(r_add(f, r_mul(f, 0.128379166)), parts.exponent), x);
}

// ---------------------------------------------------------------- floor and ceil

// Drops the fraction; `outward` moves a non-integer to the next integer away from zero.
fn without_fraction(x: f32, outward: bool) -> f32 {
    let magnitude = without_sign(x);
    if (magnitude == 0u || magnitude >= 0x4b000000u) { return x; }
    var whole = select(0u, 0x3f800000u, outward);
    if (magnitude >= 0x3f800000u) {
        let fraction = (1u << (150u - (magnitude >> 23u))) - 1u;
        whole = (magnitude + select(0u, fraction, outward)) & ~fraction;
    }
    return float_of(whole | (bits_of(x) & 0x80000000u));
}

fn strict_floor(x: f32) -> f32 { return without_fraction(x, bits_of(x) > 0x7fffffffu); }

fn strict_ceil(x: f32) -> f32 { return without_fraction(x, bits_of(x) < 0x80000000u); }
