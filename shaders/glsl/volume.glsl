// Integer convolutions over volumes: parameters, and where taps lie. The kernel has OP.

layout(push_constant) uniform Params {
    uint count;
    uint columns;
    uint tiles;
    uint id;
    uint ih;
    uint iw;
    uint ic;
    uint od;
    uint oh;
    uint ow;
    uint oc;
    uint kh;
    uint kw;
    uint z_first;
    uint z_last;
    uint y_first;
    uint y_last;
    uint x_first;
    uint x_last;
    uint c_first;
    uint c_last;
    uint sz;
    uint sy;
    uint sx;
    uint dz;
    uint dy;
    uint dx;
    uint pad_front;
    uint pad_top;
    uint pad_left;
    uint bias_step;
};

const uint TRANSPOSE_CONV2D = 10u;
const uint TILE = 4u;
const uint HEADER = 2u;

// Position of x that tap k of an output position reads; it is outside x when it is >= size.
uint tap_position(uint position, uint k, uint stride, uint dilation, uint pad, uint size) {
    if (OP != TRANSPOSE_CONV2D) return position * stride + k * dilation - pad;
    uint ahead = position - pad - k;
    uint source = ahead / stride;
    return source * stride == ahead ? source : size;
}
