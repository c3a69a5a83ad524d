// Strict FP32 functions: the same bits on every device whose add, subtract and multiply round
// to nearest even. docs/numerics.md describes each algorithm and its measured error.
//
// Only those three float operations are used, each `precise`, and never on a subnormal, an
// infinity or a NaN: some devices flush subnormals, others fold inf * 0. Everything special is
// decided on the bits, and a subnormal result is rounded by integer code.

const uint SIGN_BIT = 0x80000000u;
const uint MAGNITUDE = 0x7FFFFFFFu;
const uint FRACTION = 0x007FFFFFu;
const uint HIDDEN_BIT = 0x00800000u;
const uint INF_BITS = 0x7F800000u;
const uint NAN_BITS = 0x7FC00000u;
const uint ONE_BITS = 0x3F800000u;

bool is_nan(float v) { return (floatBitsToUint(v) & MAGNITUDE) > INF_BITS; }

bool is_inf(float v) { return (floatBitsToUint(v) & MAGNITUDE) == INF_BITS; }

// ---------------------------------------------------------------- bits <-> significand, exponent

// Significand in [2^23, 2^24) and exponent of a finite nonzero magnitude: value = s * 2^(e - 23).
void take_apart(uint magnitude, out uint significand, out int exponent) {
    exponent = int(magnitude >> 23) - 127;
    significand = (magnitude & FRACTION) | HIDDEN_BIT;
    if (magnitude < HIDDEN_BIT) {
        int up = 23 - findMSB(magnitude);
        significand = magnitude << uint(up);
        exponent = -126 - up;
    }
}

// value / 2^shift to nearest even, shift in [1, 31].
uint shift_to_nearest(uint value, uint shift) {
    uint kept = value >> shift;
    uint rest = value - (kept << shift);
    uint tie = 1u << (shift - 1u);
    return (rest > tie || (rest == tie && (kept & 1u) != 0u)) ? kept + 1u : kept;
}

// Rounds a 26-bit significand (25 bits and a sticky bit), value = s * 2^(exponent - 25).
uint put_together(uint sign, int exponent, uint significand) {
    int field = exponent + 127;
    if (field >= 255) return sign | INF_BITS;
    if (field >= 1) return sign | ((uint(field - 1) << 23) + shift_to_nearest(significand, 2u));
    if (field < -25) return sign;
    return sign | shift_to_nearest(significand, uint(3 - field));
}

// Bits of v * 2^k for a normal v; overflow gives infinity, underflow a rounded subnormal.
uint scaled_bits(float v, int k) {
    uint bits = floatBitsToUint(v);
    uint sign = bits & SIGN_BIT;
    int field = int((bits & MAGNITUDE) >> 23) + k;
    if (field >= 255) return sign | INF_BITS;
    if (field >= 1) return sign | (uint(field) << 23) | (bits & FRACTION);
    if (field < -24) return sign;
    return sign | shift_to_nearest((bits & FRACTION) | HIDDEN_BIT, uint(1 - field));
}

float power_of_two(int k) { return uintBitsToFloat(uint(k + 127) << 23); }

float negated(float v) { return uintBitsToFloat(floatBitsToUint(v) ^ SIGN_BIT); }

// ---------------------------------------------------------------- pairs (high, low) of floats

// a * b exactly: both factors are cut into halves of 12 bits, whose products are exact.
vec2 two_product(float a, float b) {
    float ah = uintBitsToFloat(floatBitsToUint(a) & 0xFFFFF000u);
    float bh = uintBitsToFloat(floatBitsToUint(b) & 0xFFFFF000u);
    precise float al = a - ah;
    precise float bl = b - bh;
    precise float product = a * b;
    precise float error = ah * bh - product;
    error = error + ah * bl;
    error = error + al * bh;
    error = error + al * bl;
    return vec2(product, error);
}

// 1 / d to about two units in the last place for normal positive d of moderate size.
float rough_reciprocal(float d) {
    precise float w = uintBitsToFloat(0x7EF311C7u - floatBitsToUint(d));
    precise float residue = 2.0 - d * w;
    w = w * residue;
    residue = 2.0 - d * w;
    w = w * residue;
    residue = 2.0 - d * w;
    w = w * residue;
    return w;
}

// Quotient of two pairs, rounded to one float.
float pair_quotient(vec2 n, vec2 d) {
    float w = rough_reciprocal(d.x);
    precise float q = n.x * w;
    vec2 back = two_product(q, d.x);
    precise float rest = (n.x - back.x) - back.y;
    rest = rest - q * d.y;
    rest = rest + n.y;
    precise float result = q + rest * w;
    return result;
}

// ---------------------------------------------------------------- division and square root

// Correctly rounded quotient: a float guess of the 25-bit quotient, then the exact integer
// remainder (small, so 32 bits modulo 2^32 hold it) corrects the guess and gives the sticky bit.
uint divide_bits(uint a, uint b) {
    uint sign = (a ^ b) & SIGN_BIT;
    uint am = a & MAGNITUDE;
    uint bm = b & MAGNITUDE;
    if (am > INF_BITS || bm > INF_BITS) return NAN_BITS;
    if (am == INF_BITS) return bm == INF_BITS ? NAN_BITS : sign | INF_BITS;
    if (bm == INF_BITS) return sign;
    if (bm == 0u) return am == 0u ? NAN_BITS : sign | INF_BITS;
    if (am == 0u) return sign;
    uint n, d;
    int en, ed;
    take_apart(am, n, en);
    take_apart(bm, d, ed);
    int exponent = en - ed;
    if (n < d) {
        n <<= 1;
        exponent -= 1;
    }
    // d * 2^-24 lies in [1/2, 1); n has at most 24 significant bits, so its float is exact.
    float w = rough_reciprocal(uintBitsToFloat(0x3F000000u | (d & FRACTION)));
    precise float guess = float(n) * w;
    uint q = uint(guess);
    int rest = int((n << 24) - q * d);
    precise float step_size = float(rest >> 8) * w;
    step_size = step_size * 1.52587890625e-05;
    int steps = int(step_size);
    q += uint(steps);
    rest -= steps * int(d);
    if (rest < 0) {
        q -= 1u;
        rest += int(d);
    }
    if (rest >= int(d)) {
        q += 1u;
        rest -= int(d);
    }
    return put_together(sign, exponent, (q << 1) | (rest != 0 ? 1u : 0u));
}

float strict_divide(float a, float b) {
    return uintBitsToFloat(divide_bits(floatBitsToUint(a), floatBitsToUint(b)));
}

float strict_reciprocal(float x) {
    return uintBitsToFloat(divide_bits(ONE_BITS, floatBitsToUint(x)));
}

// x = m * 2^e with even e and m in [1, 4), both as integer m * 2^23 and as float.
float even_exponent(uint magnitude, out uint significand, out int exponent) {
    take_apart(magnitude, significand, exponent);
    if ((exponent & 1) != 0) {
        significand <<= 1;
        exponent -= 1;
    }
    precise float m = float(significand) * 1.1920928955078125e-07;
    return m;
}

float rough_rsqrt(float m) {
    precise float y = uintBitsToFloat(0x5F3759DFu - (floatBitsToUint(m) >> 1));
    precise float halved = m * 0.5;
    for (int i = 0; i < 3; i++) {
        precise float square = y * y;
        precise float factor = 1.5 - halved * square;
        y = y * factor;
    }
    return y;
}

// Correctly rounded, by the same integer remainder as the division.
float strict_sqrt(float x) {
    uint bits = floatBitsToUint(x);
    uint magnitude = bits & MAGNITUDE;
    if (magnitude > INF_BITS) return uintBitsToFloat(NAN_BITS);
    if (magnitude == 0u) return x;
    if (bits >= SIGN_BIT) return uintBitsToFloat(NAN_BITS);
    if (magnitude == INF_BITS) return x;
    uint s;
    int exponent;
    float m = even_exponent(magnitude, s, exponent);
    float y = rough_rsqrt(m);
    precise float guess = m * y;
    guess = guess * 16777216.0;
    uint root = uint(guess);
    int rest = int((s << 25) - root * root);
    precise float step_size = float(rest >> 8) * y;
    step_size = step_size * 7.62939453125e-06;
    root += uint(int(step_size));
    rest = int((s << 25) - root * root);
    if (rest < 0) {
        root -= 1u;
        rest += int(2u * root + 1u);
    }
    if (rest > int(2u * root)) {
        rest -= int(2u * root + 1u);
        root += 1u;
    }
    return uintBitsToFloat(put_together(0u, exponent / 2, (root << 1) | (rest != 0 ? 1u : 0u)));
}

float strict_rsqrt(float x) {
    uint bits = floatBitsToUint(x);
    uint magnitude = bits & MAGNITUDE;
    if (magnitude > INF_BITS) return uintBitsToFloat(NAN_BITS);
    if (magnitude == 0u) return uintBitsToFloat(bits | INF_BITS);
    if (bits >= SIGN_BIT) return uintBitsToFloat(NAN_BITS);
    if (magnitude == INF_BITS) return uintBitsToFloat(0u);
    uint s;
    int exponent;
    float m = even_exponent(magnitude, s, exponent);
    float y = rough_rsqrt(m);
    // One Newton step whose residue 1 - m y^2 is taken in pairs.
    vec2 my = two_product(m, y);
    vec2 myy = two_product(my.x, y);
    precise float residue = (1.0 - myy.x) - myy.y;
    residue = residue - my.y * y;
    precise float refined = y + (y * 0.5) * residue;
    return uintBitsToFloat(scaled_bits(refined, -(exponent / 2)));
}

// ---------------------------------------------------------------- exponential and logarithm

// e^(hi + lo) = (result.x + result.y) * 2^k with the result near [0.7, 1.42]; |hi| < 512.
vec2 exp_pair(float hi, float lo, out int k) {
    precise float shifted = hi * 1.44269502 + 12582912.0;
    precise float kf = shifted - 12582912.0;
    k = int(floatBitsToUint(shifted)) - 0x4B400000;
    precise float r0 = hi - kf * 0.693145751953125;
    precise float t = kf * 1.42860677e-06;
    precise float r1 = r0 - t;
    precise float c = ((r0 - r1) - t) + lo;
    precise float r = r1 + c;
    precise float rl = c - (r - r1);
    precise float p = 0.000197426911 * r + 0.00139359338;
    p = p * r + 0.00833356939;
    p = p * r + 0.0416664556;
    p = p * r + 0.166666657;
    p = p * r + 0.5;
    precise float square = r * r;
    precise float tail = square * p;
    precise float high = 1.0 + r;
    tail = tail + rl * high;
    precise float low = ((1.0 - high) + r) + tail;
    precise float sum = high + low;
    low = low - (sum - high);
    return vec2(sum, low);
}

float strict_exp(float x) {
    uint bits = floatBitsToUint(x);
    uint magnitude = bits & MAGNITUDE;
    if (magnitude > INF_BITS) return uintBitsToFloat(NAN_BITS);
    if (bits < SIGN_BIT && magnitude >= 0x42B20000u) return uintBitsToFloat(INF_BITS);
    if (magnitude >= 0x42D00000u) return uintBitsToFloat(0u);
    if (magnitude < 0x32800000u) return 1.0;
    int k;
    vec2 e = exp_pair(x, 0.0, k);
    return uintBitsToFloat(scaled_bits(e.x, k));
}

// log of a finite nonzero magnitude as a pair: k log 2 + 2 atanh((m - 1) / (m + 1)), with the
// quotient a pair. Relative error about 2^-30, which is what pow needs.
vec2 log_pair(uint magnitude) {
    uint s;
    int k;
    take_apart(magnitude, s, k);
    uint one = ONE_BITS;
    if (s >= 0x00B504F3u) {
        k += 1;
        one = 0x3F000000u;
    }
    float m = uintBitsToFloat(one | (s & FRACTION));
    precise float f = m - 1.0;
    precise float d = m + 1.0;
    precise float dl = m - (d - 1.0);
    float w = rough_reciprocal(d);
    precise float q = f * w;
    vec2 back = two_product(q, d);
    precise float rest = (f - back.x) - back.y;
    rest = rest - q * dl;
    precise float correction = rest * w;
    precise float u = q + correction;
    precise float ul = correction - (u - q);
    precise float z = u * u;
    precise float p = 0.546662867 * z + 0.196107566;
    p = p * z + 0.286367595;
    p = p * z + 0.399993539;
    p = p * z + 0.666666687;
    precise float series = z * p;
    series = u * series;
    precise float twice_low = 2.0 * ul;
    series = series + (twice_low + twice_low * z);
    precise float kf = float(k);
    precise float base = kf * 0.693145751953125;
    precise float twice = 2.0 * u;
    precise float high = base + twice;
    precise float low = twice - (high - base);
    low = low + (series + kf * 1.42860677e-06);
    precise float sum = high + low;
    precise float remainder = low - (sum - high);
    return vec2(sum, remainder);
}

float strict_log(float x) {
    uint bits = floatBitsToUint(x);
    uint magnitude = bits & MAGNITUDE;
    if (magnitude == 0u) return uintBitsToFloat(SIGN_BIT | INF_BITS);
    if (bits > INF_BITS) return uintBitsToFloat(NAN_BITS);
    if (magnitude == INF_BITS) return x;
    if (magnitude == ONE_BITS) return 0.0;
    return log_pair(magnitude).x;
}

uint pow_bits(uint x, uint y) {
    uint xm = x & MAGNITUDE;
    uint ym = y & MAGNITUDE;
    if (ym == 0u || x == ONE_BITS) return ONE_BITS;
    if (xm > INF_BITS || ym > INF_BITS) return NAN_BITS;
    bool negative_y = y >= SIGN_BIT;
    bool integral = ym >= 0x4B800000u;
    bool odd = false;
    if (ym >= ONE_BITS && !integral) {
        uint below = 150u - (ym >> 23);
        uint ys = (ym & FRACTION) | HIDDEN_BIT;
        integral = (ys & ((1u << below) - 1u)) == 0u;
        odd = integral && ((ys >> below) & 1u) != 0u;
    }
    uint sign = odd ? x & SIGN_BIT : 0u;
    if (xm == 0u || xm == INF_BITS) {
        return sign | ((xm == 0u) == negative_y ? INF_BITS : 0u);
    }
    if (ym == INF_BITS) {
        if (xm == ONE_BITS) return ONE_BITS;
        return (xm > ONE_BITS) != negative_y ? INF_BITS : 0u;
    }
    if (x >= SIGN_BIT && !integral) return NAN_BITS;
    if (xm == ONE_BITS) return sign | ONE_BITS;
    vec2 l = log_pair(xm);
    uint lb = floatBitsToUint(l.x);
    bool up = (lb >= SIGN_BIT) == negative_y;
    // The exponents of both factors decide the far cases, so the product cannot leave the range.
    int size = int(ym >> 23) + int((lb & MAGNITUDE) >> 23) - 254;
    if (size >= 8) return sign | (up ? INF_BITS : 0u);
    if (size < -28) return sign | ONE_BITS;
    float yf = uintBitsToFloat(y);
    vec2 product = two_product(yf, l.x);
    precise float low = product.y + yf * l.y;
    precise float high = product.x + low;
    low = low - (high - product.x);
    uint hm = floatBitsToUint(high) & MAGNITUDE;
    if (up && hm >= 0x42B20000u) return sign | INF_BITS;
    if (hm >= 0x42D20000u) return sign;
    int k;
    vec2 e = exp_pair(high, low, k);
    return sign | scaled_bits(e.x, k);
}

float strict_pow(float x, float y) {
    return uintBitsToFloat(pow_bits(floatBitsToUint(x), floatBitsToUint(y)));
}

// ---------------------------------------------------------------- sine and cosine

// Words of 2/pi behind one zero word (bit 0 of the stream weighs 2^31).
uint two_over_pi(uint index) {
    const uint stream[8] = uint[8](0u, 0xA2F9836Eu, 0x4E441529u, 0xFC2757D1u, 0xF534DDC0u,
                                   0xDB629599u, 0x3C439041u, 0xFE5163ABu);
    return stream[index];
}

// Payne-Hanek: |x| = quadrant * pi/2 + r for 0.5 <= |x| < inf. The product of the significand
// with a 96-bit window of 2/pi, modulo 4, leaves 62 exact bits of fraction.
vec2 reduce_angle(uint magnitude, out uint quadrant) {
    uint start = (magnitude >> 23) - 120u;
    uint word = start >> 5;
    uint up = start & 31u;
    uint s0 = two_over_pi(word);
    uint s1 = two_over_pi(word + 1u);
    uint s2 = two_over_pi(word + 2u);
    uint s3 = two_over_pi(word + 3u);
    if (up != 0u) {
        uint down = 32u - up;
        s0 = (s0 << up) | (s1 >> down);
        s1 = (s1 << up) | (s2 >> down);
        s2 = (s2 << up) | (s3 >> down);
    }
    uint m = (magnitude & FRACTION) | HIDDEN_BIT;
    uint high1, low1, high2, low2, carry;
    umulExtended(m, s1, high1, low1);
    umulExtended(m, s2, high2, low2);
    uint lo = uaddCarry(low1, high2, carry);
    uint hi = m * s0 + high1 + carry;
    quadrant = (hi + 0x20000000u) >> 30;
    hi -= quadrant << 30;
    uint sign = hi & SIGN_BIT;
    if (sign != 0u) {
        lo = ~lo + 1u;
        hi = ~hi + (lo == 0u ? 1u : 0u);
    }
    // The fraction of no float is closer to zero than about 2^-32, so 34 leading zeros at most.
    uint zeros = hi != 0u ? 31u - uint(findMSB(hi)) : 63u - uint(findMSB(lo));
    if (zeros >= 32u) {
        hi = lo << (zeros - 32u);
        lo = 0u;
    } else if (zeros != 0u) {
        hi = (hi << zeros) | (lo >> (32u - zeros));
        lo <<= zeros;
    }
    float unit = power_of_two(-22 - int(zeros));
    precise float f = float(hi >> 8) * unit;
    precise float fl = float(((hi & 0xFFu) << 16) | (lo >> 16)) * unit;
    fl = fl * 5.9604644775390625e-08;
    vec2 product = two_product(f, 1.57079637);
    precise float low = f * -4.37113883e-08 + fl * 1.57079637;
    low = product.y + low;
    precise float r = product.x + low;
    precise float rl = low - (r - product.x);
    return vec2(uintBitsToFloat(floatBitsToUint(r) ^ sign), uintBitsToFloat(floatBitsToUint(rl) ^ sign));
}

// sin of |x| + turn * pi/2.
float circular(uint magnitude, uint turn) {
    uint quadrant = 0u;
    vec2 r = vec2(uintBitsToFloat(magnitude), 0.0);
    if (magnitude >= 0x3F000000u) r = reduce_angle(magnitude, quadrant);
    quadrant += turn;
    precise float z = r.x * r.x;
    precise float result;
    if ((quadrant & 1u) == 0u) {
        precise float p = 2.83171789e-06 * z + -0.000198530252;
        p = p * z + 0.0083333794;
        p = p * z + -0.166666672;
        p = (p * z) * r.x;
        result = r.x + (r.y + p);
    } else {
        precise float p = -2.89181628e-07 * z + 2.48224478e-05;
        p = p * z + -0.00138889812;
        p = p * z + 0.0416666679;
        precise float square = z * z;
        p = square * p;
        precise float halved = 0.5 * z;
        precise float high = 1.0 - halved;
        precise float low = (1.0 - high) - halved;
        result = high + (low + (p - r.x * r.y));
    }
    return uintBitsToFloat(floatBitsToUint(result) ^ ((quadrant & 2u) << 30));
}

float strict_sin(float x) {
    uint bits = floatBitsToUint(x);
    uint magnitude = bits & MAGNITUDE;
    if (magnitude >= INF_BITS) return uintBitsToFloat(NAN_BITS);
    if (magnitude < 0x39800000u) return x;
    return uintBitsToFloat(floatBitsToUint(circular(magnitude, 0u)) ^ (bits & SIGN_BIT));
}

float strict_cos(float x) {
    uint magnitude = floatBitsToUint(x) & MAGNITUDE;
    if (magnitude >= INF_BITS) return uintBitsToFloat(NAN_BITS);
    if (magnitude < 0x39800000u) return 1.0;
    return circular(magnitude, 1u);
}

// ---------------------------------------------------------------- tanh, sigmoid, erf

float strict_tanh(float x) {
    uint bits = floatBitsToUint(x);
    uint magnitude = bits & MAGNITUDE;
    uint sign = bits & SIGN_BIT;
    if (magnitude > INF_BITS) return uintBitsToFloat(NAN_BITS);
    if (magnitude < 0x39800000u) return x;
    if (magnitude >= 0x41110000u) return uintBitsToFloat(sign | ONE_BITS);
    if (magnitude < 0x3F0CCCCDu) {
        precise float z = x * x;
        precise float p = 0.00217298488 * z + -0.00821389537;
        p = p * z + 0.0217162129;
        p = p * z + -0.0539496243;
        p = p * z + 0.133332282;
        p = p * z + -0.333333313;
        precise float small = x + (p * z) * x;
        return small;
    }
    // (1 - t) / (1 + t), t = e^(-2|x|)
    int k;
    precise float exponent = uintBitsToFloat(magnitude) * -2.0;
    vec2 e = exp_pair(exponent, 0.0, k);
    float unit = power_of_two(k);
    precise float t = e.x * unit;
    precise float tl = e.y * unit;
    precise float n = 1.0 - t;
    precise float nl = ((1.0 - n) - t) - tl;
    precise float d = 1.0 + t;
    precise float dl = ((1.0 - d) + t) + tl;
    return uintBitsToFloat(floatBitsToUint(pair_quotient(vec2(n, nl), vec2(d, dl))) | sign);
}

float strict_sigmoid(float x) {
    uint bits = floatBitsToUint(x);
    uint magnitude = bits & MAGNITUDE;
    bool negative = bits >= SIGN_BIT;
    if (magnitude > INF_BITS) return uintBitsToFloat(NAN_BITS);
    if (magnitude < 0x32800000u) return 0.5;
    if (magnitude >= 0x42D00000u && negative) return uintBitsToFloat(0u);
    if (magnitude >= 0x418C0000u && !negative) return 1.0;
    // t = e^-|x|; 1 / (1 + t) for positive x, t / (1 + t) for negative x
    int k;
    vec2 e = exp_pair(uintBitsToFloat(magnitude | SIGN_BIT), 0.0, k);
    float unit = power_of_two(max(k, -60));
    precise float t = e.x * unit;
    precise float tl = e.y * unit;
    precise float d = 1.0 + t;
    precise float dl = ((1.0 - d) + t) + tl;
    vec2 n = negative ? e : vec2(1.0, 0.0);
    float q = pair_quotient(n, vec2(d, dl));
    return uintBitsToFloat(scaled_bits(q, negative ? k : 0));
}

float strict_erf(float x) {
    uint bits = floatBitsToUint(x);
    uint magnitude = bits & MAGNITUDE;
    uint sign = bits & SIGN_BIT;
    if (magnitude > INF_BITS) return uintBitsToFloat(NAN_BITS);
    if (magnitude == 0u) return x;
    if (magnitude >= 0x407AE148u) return uintBitsToFloat(sign | ONE_BITS);
    if (magnitude < 0x39800000u) {
        // x * 2/sqrt(pi), scaled so that a subnormal x does not matter
        uint s;
        int exponent;
        take_apart(magnitude, s, exponent);
        float f = uintBitsToFloat(ONE_BITS | (s & FRACTION));
        precise float linear = f + f * 0.128379166;
        return uintBitsToFloat(sign | scaled_bits(linear, exponent));
    }
    if (magnitude < 0x3F700000u) {
        precise float z = x * x;
        precise float p = 3.85574958e-06 * z + 6.99455923e-05;
        p = p * z + -0.000795210712;
        p = p * z + 0.005188026;
        p = p * z + -0.0268548541;
        p = p * z + 0.112836197;
        p = p * z + -0.376126289;
        p = p * z + 0.128379166;
        precise float small = x + x * p;
        return small;
    }
    // 1 - e^-Q, Q = -log(erfc |x|) as a polynomial around 2
    precise float u = uintBitsToFloat(magnitude) - 2.0;
    precise float q = -0.000195195724 * u + 0.000692226749;
    q = q * u + -0.00355367921;
    q = q * u + 0.0164920464;
    q = q * u + 0.92375797;
    q = q * u + 4.41816044;
    q = q * u + 5.36494112;
    int k;
    vec2 e = exp_pair(negated(q), 0.0, k);
    float unit = power_of_two(k);
    precise float t = e.x * unit;
    precise float tl = e.y * unit;
    precise float high = 1.0 - t;
    precise float low = ((1.0 - high) - t) - tl;
    precise float result = high + low;
    return uintBitsToFloat(floatBitsToUint(result) | sign);
}

// ---------------------------------------------------------------- floor and ceil

// Rounds towards zero, or away from zero when `away`; the sign bit is kept.
uint whole_bits(uint bits, bool away) {
    uint magnitude = bits & MAGNITUDE;
    uint field = magnitude >> 23;
    if (field >= 150u || magnitude == 0u) return bits;
    if (field < 127u) return (bits & SIGN_BIT) | (away ? ONE_BITS : 0u);
    uint below = (1u << (150u - field)) - 1u;
    return (away ? bits + below : bits) & ~below;
}

float strict_floor(float x) {
    uint bits = floatBitsToUint(x);
    return uintBitsToFloat(whole_bits(bits, bits >= SIGN_BIT));
}

float strict_ceil(float x) {
    uint bits = floatBitsToUint(x);
    return uintBitsToFloat(whole_bits(bits, bits < SIGN_BIT));
}
