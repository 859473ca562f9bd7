/* The loops of plain_replica.py and plain_pipeline.py in C: the same events in the same order, each sum added up as
Python adds it.

What the general code reads stays in the Python objects that it reads: queues, the heap of ends, requests that run. So
what a line of `_events` does is done here, and a step that is not plain is left to Python as there. Sums and counters
are read when a call begins (`load`) and written back when it ends (`store`). tests/serving/test_plain_native.py holds
both to the same last bit. Compiled without contraction of floats: a product is rounded before it is added to. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>

enum { QUIET, PROMPTS, DECODES, EMPTY };
enum { FIRST, LAST, HANDOFF, TOKENS };
typedef long long Int;

/* --- names and what is imported once --- */

#define NAMES(X) \
    X(__self__) X(admitted) X(alone) X(answers) X(append) X(batch_knots) X(batch_seconds) X(block) X(blocking) \
    X(budget) X(busy) X(cache) X(capacity) X(clients) X(clock) X(computed) X(computed_elsewhere) X(context) \
    X(contexts) X(count) X(decode_grid) X(decode_tokens) X(decodes) X(done) X(ends) X(engines) X(events) X(finish) \
    X(finish_decodes) X(first) X(fixed) X(floors) X(flying) X(free) X(frombytes) X(front) X(front_free) \
    X(front_request) X(front_token) X(gap_weights) X(gaps) X(goes_on) X(graph_floors) X(graph_tokens) X(grown) \
    X(handlers) X(handoff) X(head) X(host) X(host_loads) X(host_sequence) X(idle) X(in_flight) X(inbox) X(joined) \
    X(known) X(kv_peak) X(kv_seconds) X(lane_slots) X(lanes) X(largest_step) X(latency) X(launch) X(layer_loads) \
    X(layers) X(left) X(loads) X(meter) X(metered) X(narrow) X(native) X(new_knots) X(notify) X(output) \
    X(output_left) X(overlapped) X(own) X(page) X(partial) X(past_knots) X(pause) X(phases) X(popleft) X(previous) \
    X(progress) X(prompt) X(prompt_grid) X(prompt_share) X(prompt_steps) X(prompt_tokens) X(put_aside) X(queue) \
    X(queued_tokens) X(ranks) X(reactive) X(records) X(release) X(requests) X(rules) X(running) X(scheduler) \
    X(seen_late) X(sent) X(shared) X(shop) X(short) X(size) X(slots) X(staged_with_prompts) X(status) X(steps) \
    X(taking) X(times) X(to_compute) X(token_time) X(tokens_timed) X(tried) X(turns_taken) X(unchanged) X(unseen) \
    X(unsettled) X(used) X(waited) X(waiting) X(waits) X(wide) X(windows) X(with_prompts)

enum {
#define X(name) N_##name,
    NAMES(X)
#undef X
    N_NAMES
};
static PyObject *names[N_NAMES];
#define NAME(x) names[N_##x]

static PyObject *tokens_of[TOKENS]; /* members of clients.Token */
static PyObject *nobody, *budget_reason, *cache_reason, *slots_reason, *front_end, *heappop;
static PyObject *batch_of, *rank_load, *chunk_of;
static Int wide_from, finished_code;
static double prompt_counts[16];
static int prompt_counts_size;

/* --- small things --- */

static inline double number(PyObject *value) {
    return PyFloat_Check(value) ? PyFloat_AS_DOUBLE(value) : PyFloat_AsDouble(value);
}

static PyObject *pair_of(PyObject *first, PyObject *second) { /* takes both references */
    PyObject *pair = first && second ? PyTuple_New(2) : NULL;
    if (pair) {
        PyTuple_SET_ITEM(pair, 0, first);
        PyTuple_SET_ITEM(pair, 1, second);
    } else {
        Py_XDECREF(first);
        Py_XDECREF(second);
    }
    return pair;
}

static int get_double(PyObject *of, PyObject *name, double *found) {
    PyObject *value = PyObject_GetAttr(of, name);
    if (!value) return -1;
    *found = number(value);
    Py_DECREF(value);
    return *found == -1.0 && PyErr_Occurred() ? -1 : 0;
}

static int get_int(PyObject *of, PyObject *name, Int *found) {
    PyObject *value = PyObject_GetAttr(of, name);
    if (!value) return -1;
    *found = PyLong_AsLongLong(value);
    Py_DECREF(value);
    return *found == -1 && PyErr_Occurred() ? -1 : 0;
}

static int get_true(PyObject *of, PyObject *name, int *found) {
    PyObject *value = PyObject_GetAttr(of, name);
    if (!value) return -1;
    *found = PyObject_IsTrue(value);
    Py_DECREF(value);
    return *found < 0 ? -1 : 0;
}

static int set_taken(PyObject *of, PyObject *name, PyObject *value) { /* takes the reference */
    if (!value) return -1;
    int failed = PyObject_SetAttr(of, name, value);
    Py_DECREF(value);
    return failed;
}

static int set_double(PyObject *of, PyObject *name, double value) {
    return set_taken(of, name, PyFloat_FromDouble(value));
}

static int set_int(PyObject *of, PyObject *name, Int value) { return set_taken(of, name, PyLong_FromLongLong(value)); }

static inline Int modulo(Int value, Int by) {
    Int rest = value % by;
    return rest < 0 ? rest + by : rest;
}

static inline Int blocks_of(Int tokens, Int page) { return (tokens + page - 1) / page * page; } /* tokens >= 0 */

static double floor_div(double of, double by) { /* as floats of Python divide */
    double rest = fmod(of, by), quotient = (of - rest) / by;
    if (rest && (by < 0) != (rest < 0)) quotient -= 1.0;
    if (!quotient) return copysign(0.0, of / by);
    double whole = floor(quotient);
    return quotient - whole > 0.5 ? whole + 1.0 : whole;
}

static inline Int whole_up(double value) { /* ceil, with an end */
    double up = ceil(value);
    return up >= 9e18 ? (Int)9000000000000000000LL : up <= -9e18 ? (Int)-9000000000000000000LL : (Int)up;
}

static inline PyObject *item(PyObject *list, Py_ssize_t at) { return PyList_GET_ITEM(list, at); }
static inline double value_at(PyObject *list, Py_ssize_t at) { return number(PyList_GET_ITEM(list, at)); }

static Py_ssize_t bisect(PyObject *list, double value, Py_ssize_t low, Py_ssize_t high) { /* bisect_right */
    while (low < high) {
        Py_ssize_t middle = (low + high) / 2;
        if (value < value_at(list, middle)) high = middle;
        else low = middle + 1;
    }
    return low;
}

/* --- the heap of (step, request), as heapq keeps it --- */

static inline Int part(PyObject *pair, int at) { return PyLong_AsLongLong(PyTuple_GET_ITEM(pair, at)); }

static inline int before(Int step, Int request, PyObject *other) {
    Int there = part(other, 0);
    return step < there || (step == there && request < part(other, 1));
}

static void sift_down(PyObject **items, Py_ssize_t start, Py_ssize_t at) {
    PyObject *moved = items[at];
    Int step = part(moved, 0), request = part(moved, 1);
    while (at > start) {
        Py_ssize_t up = (at - 1) >> 1;
        if (!before(step, request, items[up])) break;
        items[at] = items[up];
        at = up;
    }
    items[at] = moved;
}

static int heap_push(PyObject *heap, PyObject *pair) {
    if (PyList_Append(heap, pair)) return -1;
    sift_down(((PyListObject *)heap)->ob_item, 0, PyList_GET_SIZE(heap) - 1);
    return 0;
}

static PyObject *heap_pop(PyObject *heap) { /* gives a reference */
    PyObject **items = ((PyListObject *)heap)->ob_item;
    Py_ssize_t count = PyList_GET_SIZE(heap) - 1, at = 0, child = 1;
    PyObject *found = items[0], *last = items[count];
    Py_SET_SIZE((PyVarObject *)heap, count);
    if (!count) return found;
    while (child < count) {
        if (child + 1 < count && !before(part(items[child], 0), part(items[child], 1), items[child + 1])) child++;
        items[at] = items[child];
        at = child;
        child = 2 * at + 1;
    }
    items[at] = last;
    sift_down(items, 0, at);
    return found;
}

/* --- what grows --- */

typedef struct {
    Int request;
    int token;
} Seen;

typedef struct {
    Seen *at;
    Py_ssize_t count, room;
} Tokens;

static int add_token(Tokens *to, Int request, int token) {
    if (to->count == to->room) {
        Py_ssize_t room = to->room ? 2 * to->room : 64;
        Seen *at = PyMem_Realloc(to->at, room * sizeof(Seen));
        if (!at) {
            PyErr_NoMemory();
            return -1;
        }
        to->at = at;
        to->room = room;
    }
    to->at[to->count].request = request;
    to->at[to->count++].token = token;
    return 0;
}

typedef struct {
    double *gap, *weight;
    Py_ssize_t count, room;
    int unread; /* nobody asks when tokens came */
} Gaps;

static int add_gap(Gaps *to, double gap, double weight) {
    if (to->unread) return 0;
    if (to->count == to->room) {
        Py_ssize_t room = to->room ? 2 * to->room : 256;
        double *gaps = PyMem_Realloc(to->gap, room * sizeof(double));
        if (gaps) to->gap = gaps;
        double *weights = gaps ? PyMem_Realloc(to->weight, room * sizeof(double)) : NULL;
        if (!weights) {
            PyErr_NoMemory();
            return -1;
        }
        to->weight = weights;
        to->room = room;
    }
    to->gap[to->count] = gap;
    to->weight[to->count++] = weight;
    return 0;
}

/* --- a replica --- */

typedef struct {
    double layers, launch[2];
    PyObject *from, *shared, *head, *alone, *grid;
    double *decode_grid, *knots; /* seconds of decodes by batch and context, and the batches */
    Py_ssize_t knots_count;
    int same; /* it is that of the stage before */
} Table;

/* Lines that were made of tables, by batch: NaN where they are yet to be made. */
typedef struct {
    double **of;
    Py_ssize_t room;
} Lines;

/* The tables of a StepTimes, and the lines of steps that only decode: through all stages, and of each. */
typedef struct {
    PyObject_HEAD
    PyObject *times, *news, *pasts;
    double *contexts, *floors, *graph_floors, host, host_sequence;
    Py_ssize_t contexts_count, stages;
    Lines decodes, passes;
    Int graph_tokens;
    int alike;
    Table *tables[2]; /* of each stage: of narrow prompts, of wide ones */
} Prices;

struct Fleet;

typedef struct {
    PyObject_HEAD
    PyObject *replica, *scheduler, *rules, *records, *admitted, *decodes, *clients, *queue, *progress;
    PyObject *inbox, *waiting, *running, *output_left, *computed_elsewhere, *own;
    PyObject *idle, *again, *known_fixed; /* runs of blocks that nobody uses (NULL: no cache of blocks); sent back */
    Prices *prices;
    double capacity, latency, front_request, front_token;
    Int page, slots, lane_slots, budget;
    int windows, in_flight, overlapped, late;
    struct Fleet *fleet; /* that it runs in now */
    Int place;
    /* what a call reads and writes back */
    int loaded, handoff, answers, reactive, pause, elsewhere, early, is_short, counts;
    PyObject *meter, *waited, *ends, *phases, *entered, *joined, *notify, *goes_on, *cluster, *counted_notify;
    PyObject *columns[6];
    Int *prompt, *output;
    double *begun, *first, *finish;
    unsigned char *status;
    double clock, previous, context, used, busy, computed_tokens, decoded, batch_seconds, kv_seconds, kv_peak, largest;
    Int size, steps, piece, cut, all_steps, prompt_steps, queued, counted;
    double low, high, back; /* back: when the prompts of a batch in flight are in the cache */
    Py_ssize_t at;
    Tokens fresh, others, fresh_seen, others_seen, completed;
    Gaps gaps;
    Gaps *sink;
} Plain;

static int column(Plain *r, int place, PyObject *name, void *to, const char *code) {
    Py_buffer view;
    PyObject *found = PyObject_GetAttr(r->records, name);
    if (!found) return -1;
    Py_XSETREF(r->columns[place], found);
    int written = code[0] != 'q' ? PyBUF_WRITABLE : 0; /* what requests ask for is only read */
    if (PyObject_GetBuffer(found, &view, PyBUF_ND | PyBUF_FORMAT | written)) return -1;
    int fits = view.format && view.format[0] == code[0];
    *(void **)to = view.buf; /* the column is as long as the run, and is kept */
    PyBuffer_Release(&view);
    if (fits) return 0;
    PyErr_Format(PyExc_TypeError, "column %U is of another type", name);
    return -1;
}

static int kept(PyObject **to, PyObject *of, PyObject *name) {
    PyObject *found = PyObject_GetAttr(of, name);
    if (!found) return -1;
    Py_XSETREF(*to, found);
    return 0;
}

/* Whether `notify` is the count of its cluster, and nobody watches it: then it can be added up here. */
static int look_who_counts(Plain *r) {
    if (r->notify != r->counted_notify) {
        Py_INCREF(r->notify);
        Py_XSETREF(r->counted_notify, r->notify);
        Py_CLEAR(r->cluster);
        PyObject *owner = PyObject_GetAttr(r->notify, NAME(__self__));
        PyObject *count = owner ? PyObject_GetAttr(owner, NAME(count)) : NULL;
        int same = count && PyObject_HasAttr(owner, NAME(done)) ? PyObject_RichCompareBool(count, r->notify, Py_EQ) : 0;
        PyErr_Clear();
        Py_XDECREF(count);
        if (same > 0) r->cluster = owner;
        else Py_XDECREF(owner);
    }
    r->counts = 0;
    if (!r->cluster) return 0;
    PyObject *progress = PyObject_GetAttr(r->cluster, NAME(progress));
    if (!progress) return -1;
    r->counts = progress == Py_None;
    Py_DECREF(progress);
    return 0;
}

static int load(Plain *r) {
    PyObject *cut, *unseen = NULL;
    int timed;
    if (get_true(r->records, NAME(tokens_timed), &timed)) return -1;
    r->sink->unread = !timed;
    if (kept(&r->meter, r->scheduler, NAME(meter)) || kept(&r->waited, r->meter, NAME(waited)) ||
        kept(&r->ends, r->decodes, NAME(ends)) || kept(&r->phases, r->decodes, NAME(phases)) ||
        kept(&r->entered, r->decodes, NAME(requests)) || kept(&r->notify, r->clients, NAME(notify)) ||
        kept(&r->goes_on, r->clients, NAME(goes_on)) || kept(&r->running, r->admitted, NAME(running)))
        return -1;
    if (look_who_counts(r)) return -1;
    if (column(r, 0, NAME(prompt), &r->prompt, "q") || column(r, 1, NAME(output), &r->output, "q") ||
        column(r, 2, NAME(admitted), &r->begun, "d") || column(r, 3, NAME(first), &r->first, "d") ||
        column(r, 4, NAME(finish), &r->finish, "d") || column(r, 5, NAME(status), &r->status, "B"))
        return -1;
    if (get_double(r->replica, NAME(clock), &r->clock) || get_double(r->replica, NAME(previous), &r->previous) ||
        get_true(r->replica, NAME(pause), &r->pause) || get_true(r->replica, NAME(reactive), &r->reactive) ||
        get_int(r->decodes, NAME(size), &r->size) || get_double(r->decodes, NAME(context), &r->context) ||
        get_int(r->decodes, NAME(steps), &r->steps) || get_double(r->admitted, NAME(used), &r->used) ||
        get_true(r->scheduler, NAME(short), &r->is_short) || get_int(r->scheduler, NAME(computed), &r->piece) ||
        get_true(r->scheduler, NAME(handoff), &r->handoff) || get_true(r->clients, NAME(answers), &r->answers) ||
        get_int(r->meter, NAME(steps), &r->all_steps) || get_int(r->meter, NAME(prompt_steps), &r->prompt_steps) ||
        get_double(r->meter, NAME(busy), &r->busy) ||
        get_double(r->meter, NAME(prompt_tokens), &r->computed_tokens) ||
        get_double(r->meter, NAME(decode_tokens), &r->decoded) ||
        get_double(r->meter, NAME(batch_seconds), &r->batch_seconds) ||
        get_double(r->meter, NAME(kv_seconds), &r->kv_seconds) || get_double(r->meter, NAME(kv_peak), &r->kv_peak) ||
        get_double(r->meter, NAME(largest_step), &r->largest))
        return -1;
    cut = PyObject_GetAttr(r->scheduler, NAME(partial));
    if (!cut) return -1;
    r->cut = cut == Py_None ? -1 : PyLong_AsLongLong(cut);
    Py_DECREF(cut);
    r->elsewhere = PyDict_GET_SIZE(r->output_left) || PyDict_GET_SIZE(r->own);
    unseen = PyObject_GetAttr(r->clients, NAME(unseen));
    if (!unseen) return -1;
    r->fresh.count = r->others.count = 0;
    Py_ssize_t count = PyList_GET_SIZE(unseen);
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *pair = item(unseen, i), *token = PyTuple_GET_ITEM(pair, 1);
        int which = token == tokens_of[FIRST] ? FIRST : token == tokens_of[LAST] ? LAST : HANDOFF;
        if (add_token(which == FIRST ? &r->fresh : &r->others, part(pair, 0), which)) goto failed;
    }
    Py_DECREF(unseen);
    r->early = count && !r->late;
    r->queued = r->counted = 0;
    r->loaded = 1;
    return PyErr_Occurred() ? -1 : 0;
failed:
    Py_XDECREF(unseen);
    return -1;
}

static int keep_gaps(Plain *r) {
    Gaps *from = r->sink;
    if (!from->count) return 0;
    PyObject *columns[2] = {NAME(gaps), NAME(gap_weights)};
    double *values[2] = {from->gap, from->weight};
    for (int i = 0; i < 2; i++) {
        PyObject *to = PyObject_GetAttr(r->records, columns[i]);
        PyObject *bytes =
            to ? PyMemoryView_FromMemory((char *)values[i], from->count * sizeof(double), PyBUF_READ) : NULL;
        PyObject *done = bytes ? PyObject_CallMethodOneArg(to, NAME(frombytes), bytes) : NULL;
        Py_XDECREF(to);
        Py_XDECREF(bytes);
        if (!done) return -1;
        Py_DECREF(done);
    }
    from->count = 0;
    return 0;
}

static PyObject *unseen_of(Plain *r) {
    Py_ssize_t count = r->others.count + r->fresh.count, i;
    PyObject *unseen = PyList_New(count);
    for (i = 0; unseen && i < count; i++) {
        Seen one = i < r->others.count ? r->others.at[i] : r->fresh.at[i - r->others.count];
        PyObject *pair = pair_of(PyLong_FromLongLong(one.request), Py_NewRef(tokens_of[one.token]));
        if (!pair) Py_CLEAR(unseen);
        else PyList_SET_ITEM(unseen, i, pair);
    }
    return unseen;
}

static int store_queued(Plain *r) {
    Int before_now;
    if (!r->queued) return 0;
    if (get_int(r->queue, NAME(queued_tokens), &before_now)) return -1;
    before_now += r->queued;
    r->queued = 0;
    return set_int(r->queue, NAME(queued_tokens), before_now);
}

static int store(Plain *r) {
    PyObject *cut = r->cut < 0 ? Py_NewRef(Py_None) : PyLong_FromLongLong(r->cut);
    Int done;
    r->loaded = 0;
    if (set_taken(r->scheduler, NAME(partial), cut) || set_int(r->scheduler, NAME(computed), r->piece) ||
        PyObject_SetAttr(r->scheduler, NAME(short), r->is_short ? Py_True : Py_False) ||
        set_double(r->replica, NAME(clock), r->clock) || set_double(r->replica, NAME(previous), r->previous) ||
        set_int(r->decodes, NAME(size), r->size) || set_double(r->decodes, NAME(context), r->context) ||
        set_int(r->decodes, NAME(steps), r->steps) || set_double(r->admitted, NAME(used), r->used) ||
        set_int(r->meter, NAME(steps), r->all_steps) || set_int(r->meter, NAME(prompt_steps), r->prompt_steps) ||
        set_double(r->meter, NAME(busy), r->busy) || set_double(r->meter, NAME(prompt_tokens), r->computed_tokens) ||
        set_double(r->meter, NAME(decode_tokens), r->decoded) ||
        set_double(r->meter, NAME(batch_seconds), r->batch_seconds) ||
        set_double(r->meter, NAME(kv_seconds), r->kv_seconds) || set_double(r->meter, NAME(kv_peak), r->kv_peak) ||
        set_double(r->meter, NAME(largest_step), r->largest) ||
        set_taken(r->clients, NAME(unseen), unseen_of(r)) || store_queued(r))
        return -1;
    if (r->counted) {
        if (get_int(r->cluster, NAME(done), &done) || set_int(r->cluster, NAME(done), done + r->counted)) return -1;
        r->counted = 0;
    }
    return keep_gaps(r);
}

/* --- prices: step_times.py --- */

static void find_line(Plain *r, double context) {
    if (r->low <= context && context < r->high) return;
    const double *knots = r->prices->contexts;
    Py_ssize_t count = r->prices->contexts_count, low = 0, high = count;
    while (low < high) {
        Py_ssize_t middle = (low + high) / 2;
        if (context < knots[middle]) high = middle;
        else low = middle + 1;
    }
    r->at = low;
    r->low = low ? knots[low - 1] : -INFINITY;
    r->high = low < count ? knots[low] : INFINITY;
}

typedef struct {
    double base, slope;
} Line;

static Line line_between(const double *knots, Py_ssize_t right, double value, double next) {
    Line line;
    line.slope = (next - value) / (knots[right] - knots[right - 1]);
    line.base = value - line.slope * knots[right - 1];
    return line;
}

/* StepTimes._segment_lines: the line at a place of those of a batch. */
static Line segment_line(Prices *of, Table *table, Int batch, Py_ssize_t place) {
    Py_ssize_t at = 0, last = table->knots_count - 2, count = of->contexts_count;
    Py_ssize_t high = table->knots_count;
    while (at < high) { /* bisect_right */
        Py_ssize_t middle = (at + high) / 2;
        if ((double)batch < table->knots[middle]) high = middle;
        else at = middle + 1;
    }
    at = at > 0 ? at - 1 : 0;
    at = at < last ? at : last;
    double share = ((double)batch - table->knots[at]) / (table->knots[at + 1] - table->knots[at]), values[2];
    const double *low = table->decode_grid + at * count, *next = low + count;
    Py_ssize_t right = place < 1 ? 1 : place < count ? place : count - 1;
    for (int i = 0; i < 2; i++) values[i] = low[right - 1 + i] + (next[right - 1 + i] - low[right - 1 + i]) * share;
    if (place) return line_between(of->contexts, right, values[0], values[1]);
    return (Line){values[0], 0.0};
}

static double read_rows(PyObject *table, Int rows) { /* _read */
    Py_ssize_t last = PyList_GET_SIZE(table) - 1;
    if (rows < last) return value_at(table, (Py_ssize_t)rows);
    double end = value_at(table, last), half = value_at(table, last / 2);
    return end + (end - half) * (double)(rows - last) / (double)(last - last / 2);
}

static double read_whole(PyObject *table, Int rows) { /* _whole */
    Py_ssize_t count = PyList_GET_SIZE(table);
    return rows < count ? value_at(table, (Py_ssize_t)rows)
                        : value_at(table, count - 1) * (double)rows / (double)(count - 1);
}

/* StepTimes._pass_lines: the same of all that a stage does in a step that only decodes. */
static Line pass_line(Prices *of, Table *table, Int batch, Py_ssize_t place) {
    Line line = segment_line(of, table, batch, place);
    line.base += table->layers + read_rows(table->shared, batch) + read_whole(table->head, batch);
    return line;
}

/* StepTimes.decode_lines: the line at a place of those of a batch. */
static Line decode_line(Prices *of, Int batch, Py_ssize_t place) {
    Py_ssize_t count = of->contexts_count, right = place < 1 ? 1 : place < count ? place : count - 1;
    double values[2];
    for (int i = 0; i < 2; i++) {
        values[i] = of->host + of->host_sequence * (double)batch;
        for (Py_ssize_t stage = 0; stage < of->stages; stage++) {
            Line line = pass_line(of, &of->tables[0][stage], batch, right + i);
            values[i] += line.base + line.slope * of->contexts[right - 1 + i] + 0.0;
        }
    }
    if (place) return line_between(of->contexts, right, values[0], values[1]);
    return (Line){values[0], 0.0};
}

/* The lines of a batch, so many numbers; NULL, and an error, without memory. */
static double *lines_of(Lines *all, Int batch, Py_ssize_t count) {
    if (batch >= all->room) {
        Py_ssize_t room = 2 * (Py_ssize_t)batch + 64;
        double **of = PyMem_Realloc(all->of, room * sizeof(double *));
        if (!of) return (double *)PyErr_NoMemory();
        memset(of + all->room, 0, (room - all->room) * sizeof(double *));
        all->of = of;
        all->room = room;
    }
    if (!all->of[batch]) {
        double *made = all->of[batch] = PyMem_Malloc(count * sizeof(double));
        if (!made) return (double *)PyErr_NoMemory();
        while (count) made[--count] = NAN;
    }
    return all->of[batch];
}

static void free_lines(Lines *all) {
    for (Py_ssize_t i = 0; i < all->room; i++) PyMem_Free(all->of[i]);
    PyMem_Free(all->of);
}

/* Seconds of a step that only decodes, on the line that `find_line` found; NaN, and an error, without memory. */
static double decode_takes(Plain *r, Int batch, double context) {
    Prices *of = r->prices;
    double *known = lines_of(&of->decodes, batch, 2 * (of->contexts_count + 1));
    if (!known) return NAN;
    known += 2 * r->at;
    if (known[0] != known[0]) {
        Line line = decode_line(of, batch, r->at);
        known[0] = line.base;
        known[1] = line.slope;
    }
    return known[0] + known[1] * context;
}

static int pass_takes(Plain *r, Int batch, double context, double *to) { /* the same on each station */
    Prices *of = r->prices;
    double *known = lines_of(&of->passes, batch, 2 * of->stages * (of->contexts_count + 1));
    if (!known) return -1;
    find_line(r, context);
    known += 2 * of->stages * r->at;
    for (Py_ssize_t stage = 0; known[2 * of->stages - 1] != known[2 * of->stages - 1]; stage++) {
        Line line = pass_line(of, &of->tables[0][stage], batch, r->at);
        known[2 * stage] = line.base;
        known[2 * stage + 1] = line.slope;
    }
    to[0] = of->host + of->host_sequence * (double)batch;
    for (Py_ssize_t stage = 0; stage < of->stages; stage++)
        to[stage + 1] = known[2 * stage] + known[2 * stage + 1] * context;
    return 0;
}

static double bilinear(PyObject *grid, Py_ssize_t i, Py_ssize_t j, double x, double y) {
    PyObject *low = item(grid, i), *high = item(grid, i + 1);
    double first = value_at(low, j) + (value_at(low, j + 1) - value_at(low, j)) * y;
    return first + (value_at(high, j) + (value_at(high, j + 1) - value_at(high, j)) * y - first) * x;
}

static double prompts_take(Prices *of, Table *table, Int number_of, double tokens, double pairs) {
    PyObject *news = of->news, *pasts = of->pasts;
    double prompts = (double)number_of, fresh = tokens / prompts, past = pairs / tokens - (fresh + 1) / 2;
    if (0.0 > past) past = 0.0;
    Py_ssize_t i = bisect(news, fresh, 1, PyList_GET_SIZE(news) - 1) - 1, k = 0;
    if (value_at(news, i) <= wide_from && wide_from < value_at(news, i + 1)) i += fresh <= wide_from ? -1 : 1;
    Py_ssize_t j = bisect(pasts, past, 1, PyList_GET_SIZE(pasts) - 1) - 1;
    double x = (fresh - value_at(news, i)) / (value_at(news, i + 1) - value_at(news, i));
    double y = (past - value_at(pasts, j)) / (value_at(pasts, j + 1) - value_at(pasts, j)), z = 0.0;
    if (prompts != 1.0) {
        while (k < prompt_counts_size && prompt_counts[k] <= prompts) k++;
        k = k - 1 < prompt_counts_size - 2 ? k - 1 : prompt_counts_size - 2;
        z = (prompts - prompt_counts[k]) / (prompt_counts[k + 1] - prompt_counts[k]);
    }
    double low = bilinear(item(table->grid, k), i, j, x, y);
    return k || z ? low + (bilinear(item(table->grid, k + 1), i, j, x, y) - low) * z : low;
}

static int alone_takes(Prices *of, Table *table, Int tokens, double *found) {
    PyObject *key = PyLong_FromLongLong(tokens);
    if (!key) return -1;
    PyObject *known = PyDict_GetItemWithError(table->alone, key);
    int failed = 0;
    if (known) {
        *found = number(known);
    } else {
        *found = prompts_take(of, table, 1, (double)tokens, (double)(tokens * (tokens + 1)) / 2);
        PyObject *value = PyErr_Occurred() ? NULL : PyFloat_FromDouble(*found);
        failed = value ? PyDict_SetItem(table->alone, key, value) : -1;
        Py_XDECREF(value);
    }
    Py_DECREF(key);
    return failed;
}

typedef struct {
    Int prompts, tokens;
    double pairs;
} Chunk;

static int general_price(Plain *r, Chunk *chunk, double mean, double *duration) {
    PyObject *arguments = Py_BuildValue("(LdLLd)", r->size, mean, chunk->prompts, chunk->tokens, chunk->pairs);
    PyObject *method = arguments ? PyObject_GetAttr(r->prices->times, NAME(with_prompts)) : NULL;
    PyObject *found = method ? PyObject_Call(method, arguments, NULL) : NULL;
    Py_XDECREF(method);
    Py_XDECREF(arguments);
    if (!found) return -1;
    *duration = number(found);
    Py_DECREF(found);
    return PyErr_Occurred() ? -1 : 0;
}

static int in_tables(Plain *r, Chunk *chunk, int wide) { /* whether all that is asked for is a row of them */
    Prices *of = r->prices;
    for (Py_ssize_t stage = 0; stage < of->stages; stage++) {
        Table *table = &of->tables[wide][stage];
        if (r->size + chunk->tokens >= PyList_GET_SIZE(table->shared) - 1 ||
            r->size + chunk->prompts >= PyList_GET_SIZE(table->head))
            return 0;
    }
    return of->alike;
}

/* Seconds of a stage in a step that holds prompts; mean: the context behind those that decode, on a line. */
static int stage_takes(Plain *r, Chunk *chunk, Table *table, double mean, double *seconds) {
    Int tokens = chunk->tokens;
    double alone;
    *seconds = table->layers + value_at(table->shared, r->size + tokens) +
               value_at(table->head, r->size + chunk->prompts);
    if (chunk->prompts == 1 && chunk->pairs + chunk->pairs == (double)(tokens * (tokens + 1))) {
        if (alone_takes(r->prices, table, tokens, &alone)) return -1;
        *seconds += alone;
    } else {
        *seconds += prompts_take(r->prices, table, chunk->prompts, (double)tokens, chunk->pairs);
    }
    if (r->size) {
        Line line = segment_line(r->prices, table, r->size, r->at);
        *seconds += line.base + line.slope * mean;
    } else {
        *seconds += table->launch[tokens > wide_from * chunk->prompts];
    }
    return 0;
}

static double mean_context(Plain *r) {
    double mean = r->size ? r->context / (double)r->size : 0.0;
    if (r->size) find_line(r, mean);
    return mean;
}

static int price(Plain *r, Chunk *chunk, double *duration) { /* with_prompts */
    double mean = mean_context(r), seconds;
    int wide = chunk->tokens > wide_from * chunk->prompts;
    Prices *of = r->prices;
    if (!in_tables(r, chunk, wide)) return general_price(r, chunk, mean, duration);
    if (stage_takes(r, chunk, of->tables[wide], mean, &seconds)) return -1;
    double took = of->host + of->host_sequence * (double)(r->size + chunk->prompts) + seconds;
    double floor_time = (r->size + chunk->tokens > of->graph_tokens ? of->floors : of->graph_floors)[0];
    *duration = floor_time ? pow(pow(took, 4.0) + pow(floor_time, 4.0), 0.25) : took;
    return 0;
}

/* --- queues --- */

static double head_time(PyObject *inbox) { /* of one that is not empty */
    PyObject *entry = PySequence_GetItem(inbox, 0);
    if (!entry) return NAN;
    double time = number(PyTuple_GET_ITEM(entry, 0));
    Py_DECREF(entry);
    return time;
}

static int arrive(Plain *r, double seen) { /* from the inbox to those who wait */
    while (PyObject_Size(r->inbox) > 0 && head_time(r->inbox) <= seen) {
        PyObject *entry = PyObject_CallMethodNoArgs(r->inbox, NAME(popleft));
        if (!entry) return -1;
        PyObject *done = PyObject_CallMethodOneArg(r->waiting, NAME(append), PyTuple_GET_ITEM(entry, 1));
        Py_DECREF(entry);
        if (!done) return -1;
        Py_DECREF(done);
    }
    return PyErr_Occurred() ? -1 : 0;
}

static int add_to(PyObject *sums, PyObject *key, double seconds) {
    PyObject *known = PyDict_GetItemWithError(sums, key);
    if (!known && PyErr_Occurred()) return -1;
    PyObject *sum = PyFloat_FromDouble((known ? number(known) : 0.0) + seconds);
    int failed = sum ? PyDict_SetItem(sums, key, sum) : -1;
    Py_XDECREF(sum);
    return failed;
}

static int waits_for(Plain *r, Py_ssize_t waiting, double duration) { /* whatever the head was held back by last */
    PyObject *reason = PyObject_GetAttr(r->meter, NAME(blocking));
    int failed = reason ? add_to(r->waited, reason, (double)waiting * duration) : -1;
    Py_XDECREF(reason);
    return failed;
}

static int fixed_part(Plain *r, Int total, double *found) { /* Rules.fixed */
    PyObject *key = PyLong_FromLongLong(total);
    if (!key) return -1;
    PyObject *known = PyDict_GetItemWithError(r->known_fixed, key);
    if (known) Py_INCREF(known);
    else if (!PyErr_Occurred()) known = PyObject_CallMethodOneArg(r->rules, NAME(fixed), key);
    Py_DECREF(key);
    if (!known) return -1;
    *found = number(known);
    Py_DECREF(known);
    return 0;
}

static int unsettled_part(Plain *r, Int tokens, double *found) { /* Rules.unsettled */
    PyObject *key = PyLong_FromLongLong(tokens);
    PyObject *value = key ? PyObject_CallMethodOneArg(r->rules, NAME(unsettled), key) : NULL;
    Py_XDECREF(key);
    if (!value) return -1;
    *found = number(value);
    Py_DECREF(value);
    return 0;
}

static int block_budget(Plain *r) { /* meter.block("budget") */
    PyObject *done = PyObject_CallMethodOneArg(r->meter, NAME(block), budget_reason);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

static int start(Plain *r, Py_ssize_t starts) { /* the first requests of the queue run */
    for (Py_ssize_t i = 0; i < starts; i++) {
        PyObject *request = PyObject_CallMethodNoArgs(r->waiting, NAME(popleft));
        if (!request) return -1;
        Int number_of = PyLong_AsLongLong(request);
        int failed = PyDict_SetItem(r->running, request, Py_None);
        Py_DECREF(request);
        if (failed) return -1;
        r->queued -= r->prompt[number_of];
        if (r->begun[number_of] != r->begun[number_of]) r->begun[number_of] = r->clock;
    }
    return 0;
}

static int piece_begins(Plain *r) {
    if (r->goes_on == nobody) return 0;
    PyObject *done = PyObject_CallFunction(r->goes_on, "LLd", r->cut, r->piece, r->clock);
    Py_XDECREF(done);
    return done ? get_true(r->replica, NAME(pause), &r->pause) : -1;
}

/* How many prompts, and how much of the last one: 1 where it takes more ado; then nothing has changed. */
static int plan(Plain *r, Chunk *chunk) {
    Int page = r->page, going = r->cut, reached = r->piece, tokens = 0, room = r->budget - r->size, starts = 0;
    double taken = r->used, pairs = 0.0, fixed = 0.0, more;
    Int count = (Int)PyDict_GET_SIZE(r->running), slots = count + r->lane_slots - r->size;
    Py_ssize_t waiting = PyObject_Size(r->waiting);
    if (r->slots < slots) slots = r->slots;
    r->completed.count = 0;
    if (going >= 0) {
        Int remains = r->prompt[going] - reached;
        room = room > 1 ? room : 1;
        tokens = remains < room ? remains : room;
        pairs = (double)(tokens * reached) + (double)(tokens * (tokens + 1)) / 2;
        taken += (double)(blocks_of(reached + tokens, page) - blocks_of(reached, page));
        reached += tokens;
        room -= tokens;
        if (tokens == remains) {
            if (add_token(&r->completed, going, FIRST)) return -1;
            going = -1;
        }
    }
    if (going < 0 && room > 0) {
        while (starts < waiting) {
            PyObject *head = PySequence_GetItem(r->waiting, (Py_ssize_t)starts);
            if (!head) return -1;
            Int request = PyLong_AsLongLong(head), fresh = r->prompt[request];
            Py_DECREF(head);
            starts++;
            if (r->windows && fixed_part(r, fresh + r->output[request], &fixed)) return -1;
            taken += (double)blocks_of(fresh, page) + fixed;
            if (count + starts > slots || taken + (double)((count + starts) * page) > r->capacity) return 1;
            if (r->in_flight) {
                if (unsettled_part(r, fresh, &more)) return -1;
                if (taken + (double)((count + starts) * page) + more > r->capacity) return 1;
            }
            if (fresh > room) {
                taken -= (double)(blocks_of(fresh, page) - blocks_of(room, page));
                fresh = reached = room;
                going = request;
            } else if (add_token(&r->completed, request, FIRST)) {
                return -1;
            }
            tokens += fresh;
            room -= fresh;
            pairs += (double)(fresh * (fresh + 1)) / 2;
            if (room <= 0) break;
        }
    }
    if (!tokens || taken + (double)((count + starts + 1) * page) > r->capacity) return 1;
    if (r->cut >= 0 && piece_begins(r)) return -1;
    r->is_short = 0;
    r->cut = going;
    r->piece = reached;
    r->used = taken;
    if (start(r, (Py_ssize_t)starts)) return -1;
    if (starts < waiting && block_budget(r)) return -1;
    chunk->prompts = r->completed.count + (going >= 0);
    chunk->tokens = tokens;
    chunk->pairs = pairs;
    return 0;
}

/* Whether all who wait have a cache that was computed elsewhere, with slots and room: 1 where so, 0 where it takes
   more ado. taken: the tokens of cache that are in use then. */
static int all_computed(Plain *r, Py_ssize_t waiting, double *taken) {
    Int count = (Int)PyDict_GET_SIZE(r->running), own = r->lane_slots - r->size;
    double room = r->capacity - (double)((count + (Int)waiting) * r->page), fixed = 0.0, more = 0.0;
    int fits = r->cut < 0 && r->budget > r->size && (double)(r->size * r->page) <= r->capacity - r->used;
    fits = fits && count + (Int)waiting <= r->slots && (Int)waiting <= own && !PyDict_GET_SIZE(r->again);
    *taken = r->used;
    for (Py_ssize_t i = 0; fits && i < waiting; i++) {
        PyObject *key = PySequence_GetItem(r->waiting, i);
        int known = key ? PySet_Contains(r->computed_elsewhere, key) : -1;
        Int request = key ? PyLong_AsLongLong(key) : -1;
        Py_XDECREF(key);
        if (known <= 0) return known;
        if (r->windows && fixed_part(r, r->prompt[request] + r->output[request], &fixed)) return -1;
        if (r->in_flight && unsettled_part(r, r->prompt[request], &more)) return -1;
        *taken += (double)blocks_of(r->prompt[request], r->page) + fixed;
        fits = r->output[request] > 1 && *taken + more <= room;
    }
    return fits;
}

static int enter(Plain *r, Int request, Int left, double time);

/* Those whose cache was computed elsewhere, and has come, decode from now on: 1 where it takes more ado. */
static int begin_computed(Plain *r) {
    Py_ssize_t waiting = PyObject_Size(r->waiting);
    double taken;
    int fit = PyDict_GET_SIZE(r->own) ? 0 : all_computed(r, waiting, &taken);
    if (fit <= 0) return fit < 0 ? -1 : 1;
    r->is_short = 0;
    r->used = taken;
    while (waiting--) {
        PyObject *head = PySequence_GetItem(r->waiting, 0);
        if (!head) return -1;
        Int request = PyLong_AsLongLong(head);
        int failed = PySet_Discard(r->computed_elsewhere, head) < 0 || PyDict_DelItem(r->output_left, head);
        Py_DECREF(head);
        if (failed || start(r, 1)) return -1;
        if (r->first[request] != r->first[request]) {
            if (r->answers) r->first[request] = r->clock;
            else if (add_token(&r->fresh, request, FIRST)) return -1;
        }
        if (enter(r, request, r->output[request] - 1, r->clock)) return -1;
    }
    r->elsewhere = PyDict_GET_SIZE(r->output_left) > 0;
    r->early = !r->late && (r->fresh.count || r->others.count);
    return 0;
}

/* The first who waits finds no slot or no room, so that this step only decodes: 1 where it takes more ado. growth:
   tokens of cache that a step of all lanes takes. */
static int is_blocked(Plain *r, double growth) {
    Int count = (Int)PyDict_GET_SIZE(r->running);
    double left = r->capacity - r->used, need, fixed = 0.0, more = 0.0;
    if (r->cut >= 0 || !count || r->budget <= r->size || (double)(r->size * r->page) > left) return 1;
    if (PyDict_GET_SIZE(r->again) || PyDict_GET_SIZE(r->own) || PyObject_Size(r->waiting) < 1) return 1;
    int full = r->lane_slots <= r->size || count >= r->slots;
    if (!full) {
        PyObject *head = PySequence_GetItem(r->waiting, 0);
        Int request = head ? PyLong_AsLongLong(head) : -1;
        Py_XDECREF(head);
        if (request < 0) return -1;
        if (r->windows && fixed_part(r, r->prompt[request] + r->output[request], &fixed)) return -1;
        if (r->in_flight && unsettled_part(r, r->prompt[request], &more)) return -1;
        need = (double)blocks_of(r->prompt[request], r->page) + fixed + more;
        if (need <= left - (double)(count * r->page) || need <= left - growth) return 1;
    }
    PyObject *done = PyObject_CallMethodOneArg(r->meter, NAME(block), full ? slots_reason : cache_reason);
    Py_XDECREF(done);
    r->is_short = 0;
    return done ? 0 : -1;
}

/* --- steps --- */

static inline Int crossing(Plain *r, Int later) {
    return PyLong_AsLongLong(item(r->phases, (Py_ssize_t)modulo(-(r->steps + later), r->page)));
}

static int prompt_step(Plain *r, Chunk *chunk, double *shown) {
    double duration, share;
    Int size = r->size, row = size + chunk->tokens;
    if (price(r, chunk, &duration)) return -1;
    r->previous = r->clock;
    r->clock = *shown = r->clock + duration;
    r->prompt_steps++;
    r->computed_tokens += (double)chunk->tokens;
    if ((double)row > r->largest) r->largest = (double)row;
    if (size) {
        r->used += (double)(crossing(r, 0) * r->page);
        r->steps++;
        r->context += (double)size;
        if (add_gap(r->sink, duration, (double)size)) return -1;
        r->decoded += (double)size;
        r->batch_seconds += (double)size * duration;
    }
    share = r->used / r->capacity;
    r->all_steps++;
    r->busy += duration;
    r->kv_seconds += share * duration;
    if (share > r->kv_peak) r->kv_peak = share;
    Py_ssize_t waiting = PyObject_Size(r->waiting);
    return waiting ? add_to(r->waited, budget_reason, (double)waiting * duration) : 0;
}

static Int steps_within(Plain *r, double room) {
    double block = (double)r->page;
    Int cycles = (Int)floor_div(room, (double)r->size * block);
    room -= (double)(cycles * r->size * r->page);
    for (Int step = 0; step < r->page; step++) {
        room -= (double)(crossing(r, step) * r->page);
        if (room < 0) return cycles * r->page + step;
    }
    return (cycles + 1) * r->page;
}

static Int blocks_taken(Plain *r, Int run) {
    Int page = r->page, cycles = run / page, rest = run % page, blocks = cycles * r->size;
    Int until_next = modulo(-r->steps, page) + 1, i;
    if (rest > until_next) {
        for (i = 0; i < until_next; i++) blocks += PyLong_AsLongLong(item(r->phases, (Py_ssize_t)i));
        for (i = page + until_next - rest; i < page; i++) blocks += PyLong_AsLongLong(item(r->phases, (Py_ssize_t)i));
    } else {
        for (i = until_next - rest; i < until_next; i++)
            blocks += PyLong_AsLongLong(item(r->phases, (Py_ssize_t)i));
    }
    return blocks;
}

/* Steps that only decode, up to what comes next: 1 where it takes more ado. */
static int decode_run(Plain *r, double until, double *shown) {
    Int size = r->size, run = part(item(r->ends, 0), 0) - r->steps, limit;
    double room = r->capacity - r->used;
    if ((double)((run + r->page) * size) > room) {
        Int within = steps_within(r, room);
        run = within < run ? within : run;
    }
    if (run < 1 || r->is_short) return 1;
    double mean = r->context / (double)size, middle = mean + (double)(run - 1) / 2;
    find_line(r, middle);
    double each = decode_takes(r, size, middle);
    limit = run;
    Py_ssize_t waiting = PyObject_Size(r->waiting);
    if (!waiting && PyObject_Size(r->inbox) > 0 && (Int)PyDict_GET_SIZE(r->running) < r->slots) {
        limit = whole_up((head_time(r->inbox) - r->clock) / each);
        limit = r->overlapped ? (limit > 0 ? limit : 0) + 1 : limit > 1 ? limit : 1;
    }
    if (until - r->clock < (double)run * each) {
        Int until_then = whole_up((until - r->clock) / each);
        if (!until_then) until_then = 1;
        limit = until_then < limit ? until_then : limit;
    }
    if (r->others.count && r->reactive) limit = 1;
    if (limit < run) {
        run = limit;
        middle = mean + (double)(run - 1) / 2;
        find_line(r, middle);
        each = decode_takes(r, size, middle);
    }
    double duration = (double)run * each;
    *shown = r->clock;
    r->clock += duration;
    r->previous = r->clock - each;
    Int made = run * size;
    if (add_gap(r->sink, each, (double)made)) return -1;
    Int blocks = blocks_taken(r, run);
    r->steps += run;
    r->context += (double)made;
    r->used += (double)(blocks * r->page);
    double share = r->used / r->capacity, grown = (double)(blocks * r->page) / r->capacity;
    r->all_steps += run;
    r->busy += duration;
    r->decoded += (double)made;
    r->batch_seconds += (double)size * duration;
    r->kv_seconds += (run > 1 ? share - grown * (double)(run - 1) / (double)(2 * run) : share) * duration;
    if (share > r->kv_peak) r->kv_peak = share;
    if (waiting && waits_for(r, waiting, duration)) return -1;
    if (!r->late && !r->early) {
        *shown = r->clock;
    } else if (r->fresh.count || r->others.count) {
        if (run > 1) {
            find_line(r, mean);
            each = decode_takes(r, size, mean);
        }
        *shown += each;
    }
    return 0;
}

/* --- what was made --- */

static int add_phase(Plain *r, Int at, Int change) {
    Py_ssize_t place = (Py_ssize_t)modulo(at, r->page);
    PyObject *value = PyLong_FromLongLong(PyLong_AsLongLong(item(r->phases, place)) + change);
    return value ? PyList_SetItem(r->phases, place, value) : -1;
}

static int idle_blocks(Plain *r) { return r->idle && PyDict_GET_SIZE(r->idle) > 0; }

static int finish_generally(Plain *r) { /* Scheduler.finish_decodes */
    PyObject *unseen, *done;
    if (PyObject_SetAttr(r->scheduler, NAME(decodes), r->decodes) || set_int(r->decodes, NAME(size), r->size) ||
        set_double(r->decodes, NAME(context), r->context) ||
        set_int(r->decodes, NAME(steps), r->steps) || set_double(r->admitted, NAME(used), r->used) ||
        set_taken(r->clients, NAME(unseen), PyList_New(0)))
        return -1;
    done = PyObject_CallMethodNoArgs(r->scheduler, NAME(finish_decodes));
    unseen = done ? PyObject_GetAttr(r->clients, NAME(unseen)) : NULL;
    Py_XDECREF(done);
    if (!unseen) return -1;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(unseen); i++)
        if (add_token(&r->others, part(item(unseen, i), 0), LAST)) return -1;
    Py_DECREF(unseen);
    return get_int(r->decodes, NAME(size), &r->size) || get_double(r->decodes, NAME(context), &r->context) ||
                   get_double(r->admitted, NAME(used), &r->used)
               ? -1
               : 0;
}

static int finish_one(Plain *r) { /* the request whose end is the first of the heap */
    PyObject *end = heap_pop(r->ends), *key = PyTuple_GET_ITEM(end, 1);
    PyObject *decoding = PyDict_GetItemWithError(r->entered, key);
    double fixed = 0.0;
    int failed = -1;
    if (!decoding) {
        if (!PyErr_Occurred()) PyErr_SetObject(PyExc_KeyError, key);
        goto done;
    }
    Int request = PyLong_AsLongLong(key), entry = part(decoding, 0);
    Int held = (Int)number(PyTuple_GET_ITEM(decoding, 1));
    if (PyDict_DelItem(r->entered, key) || add_phase(r, held - entry, -1)) goto done;
    held += r->steps - entry;
    r->size--;
    r->context -= (double)held;
    if (r->windows && fixed_part(r, r->prompt[request] + r->output[request], &fixed)) goto done;
    r->used -= (double)blocks_of(held, r->page) + fixed;
    if (PyDict_DelItem(r->running, key)) goto done;
    failed = add_token(&r->others, request, LAST);
done:
    Py_DECREF(end);
    return failed;
}

static int finish_decodes(Plain *r) {
    if ((PyDict_GET_SIZE(r->again) || idle_blocks(r)) && finish_generally(r)) return -1;
    while (PyList_GET_SIZE(r->ends) && part(item(r->ends, 0), 0) <= r->steps)
        if (finish_one(r)) return -1;
    return 0;
}

static int release(Plain *r, Int request, Int tokens) { /* Admitted.release */
    PyObject *key = PyLong_FromLongLong(request);
    int failed = -1;
    double fixed = 0.0;
    if (!key) goto done;
    if (!idle_blocks(r)) {
        if (r->windows && fixed_part(r, r->prompt[request] + r->output[request], &fixed)) goto done;
        r->used -= (double)blocks_of(tokens, r->page) + fixed;
        failed = PyDict_DelItem(r->running, key);
        goto done;
    }
    if (set_double(r->admitted, NAME(used), r->used)) goto done;
    PyObject *held = PyLong_FromLongLong(tokens);
    PyObject *called = held ? PyObject_CallMethodObjArgs(r->admitted, NAME(release), key, held, NULL) : NULL;
    Py_XDECREF(held);
    Py_XDECREF(called);
    if (called) failed = get_double(r->admitted, NAME(used), &r->used);
done:
    Py_XDECREF(key);
    return failed;
}

static PyObject *decoding_of(Int steps, Int tokens, Int left) {
    PyObject *decoding = PyTuple_New(3);
    Int values[3] = {steps, tokens, left};
    for (int i = 0; decoding && i < 3; i++) {
        PyObject *value = PyLong_FromLongLong(values[i]);
        if (!value) Py_CLEAR(decoding);
        else PyTuple_SET_ITEM(decoding, i, value);
    }
    return decoding;
}

static int enter(Plain *r, Int request, Int left, double time) { /* DecodeBatch.enter */
    Int tokens = r->prompt[request];
    r->size++;
    r->context += (double)tokens;
    if (add_phase(r, tokens - r->steps, 1)) return -1;
    PyObject *decoding = decoding_of(r->steps, tokens, left);
    PyObject *end = pair_of(PyLong_FromLongLong(r->steps + left), PyLong_FromLongLong(request));
    int failed = !end || !decoding || PyDict_SetItem(r->entered, PyTuple_GET_ITEM(end, 1), decoding) ||
                 heap_push(r->ends, end);
    if (!failed && r->joined) {
        PyObject *joins = PyFloat_FromDouble(time);
        failed = !joins || PyDict_SetItem(r->joined, PyTuple_GET_ITEM(end, 1), joins);
        Py_XDECREF(joins);
    }
    Py_XDECREF(end);
    Py_XDECREF(decoding);
    return failed ? -1 : 0;
}

static int finish_prompts(Plain *r) {
    for (Py_ssize_t i = 0; i < r->completed.count; i++) {
        Int request = r->completed.at[i].request, tokens = r->prompt[request], remains = r->output[request] - 1;
        if (!remains || r->handoff) {
            if (add_token(&r->others, request, remains ? HANDOFF : LAST) || release(r, request, tokens)) return -1;
            continue;
        }
        if (add_token(&r->fresh, request, FIRST) || enter(r, request, remains, r->back)) return -1;
    }
    return 0;
}

static int left_fleet(struct Fleet *fleet, Int place, Int request, double time);

static int tell(Plain *r, Int request, double time, int finished) {
    if (r->fleet) return left_fleet(r->fleet, r->place, request, time);
    if (r->counts) {
        r->counted++;
        return 0;
    }
    PyObject *arguments[3] = {PyLong_FromLongLong(request), PyFloat_FromDouble(time), finished ? Py_True : Py_False};
    PyObject *done = arguments[0] && arguments[1] ? PyObject_Vectorcall(r->notify, arguments, 3, NULL) : NULL;
    Py_XDECREF(arguments[0]);
    Py_XDECREF(arguments[1]);
    if (!done) return -1;
    Py_DECREF(done);
    return get_true(r->replica, NAME(pause), &r->pause);
}

static int show(Plain *r, Tokens *fresh, Tokens *others, double time) { /* Clients.show */
    for (Py_ssize_t i = 0; i < fresh->count; i++) {
        Int request = fresh->at[i].request;
        if (r->first[request] != r->first[request]) r->first[request] = time;
    }
    for (Py_ssize_t i = 0; i < others->count; i++) {
        Int request = others->at[i].request;
        int last = others->at[i].token == LAST;
        if (r->first[request] != r->first[request] && (r->answers || last)) r->first[request] = time;
        if (last) {
            r->finish[request] = time;
            r->status[request] = (unsigned char)finished_code;
        }
        if (tell(r, request, time, last)) return -1;
    }
    fresh->count = others->count = 0;
    return 0;
}

static void swap(Tokens *one, Tokens *other) {
    Tokens kept_one = *one;
    *one = *other;
    *other = kept_one;
}

/* The batch is empty: who sees tokens late learns so from one more step. */
static int show_last(Plain *r) {
    if (r->late) {
        Int count = (Int)(r->fresh.count + r->others.count), sum = 0;
        for (Py_ssize_t i = 0; i < r->others.count; i++)
            sum += r->prompt[r->others.at[i].request] + r->output[r->others.at[i].request];
        for (Py_ssize_t i = 0; i < r->fresh.count; i++)
            sum += r->prompt[r->fresh.at[i].request] + r->output[r->fresh.at[i].request];
        double context = (double)sum / (double)count;
        find_line(r, context);
        r->previous = r->clock;
        r->clock += decode_takes(r, count, context);
    }
    r->early = 0;
    return show(r, &r->fresh, &r->others, r->clock);
}


/* All plain events that begin before `until`, up to a pause: what is left to do then, or -1. */
static int events(Plain *r, double until, int planned) {
    double shown = 0.0;
    while (!r->pause) {
        Chunk chunk = {0, 0, 0.0};
        r->completed.count = 0;
        if (planned) {
            planned = 0;
        } else {
            Py_ssize_t coming = PyObject_Size(r->inbox);
            double next = coming > 0 ? head_time(r->inbox) : INFINITY;
            if (r->size || r->cut >= 0 || r->fresh.count || r->others.count || PyObject_Size(r->waiting) > 0) {
                if (r->clock >= until) break;
            } else if (!coming || next >= until || r->clock >= until) {
                break;
            } else {
                if (next > r->clock) r->clock = next;
                r->previous = r->clock;
                r->used = r->context = 0.0;
            }
            if (next <= r->clock && arrive(r, r->overlapped ? r->previous : r->clock)) return -1;
            if (r->cut >= 0 || PyObject_Size(r->waiting) > 0) {
                int more = r->elsewhere ? begin_computed(r) : plan(r, &chunk);
                if (more > 0) more = is_blocked(r, (double)(crossing(r, 0) * r->page));
                if (more) return more < 0 ? -1 : PROMPTS;
            }
        }
        if (chunk.prompts) {
            if (prompt_step(r, &chunk, &shown)) return -1;
        } else if (!r->size) {
            if (!r->fresh.count && !r->others.count) return EMPTY;
            if (show_last(r)) return -1;
            continue;
        } else {
            int more = decode_run(r, until, &shown);
            if (more) return more < 0 ? -1 : DECODES;
        }
        if (r->late) { /* seen now: what was made before; what this step makes is seen later */
            swap(&r->fresh, &r->fresh_seen);
            swap(&r->others, &r->others_seen);
        } else if (r->early && !chunk.prompts) { /* what was made before this run of steps */
            if (show(r, &r->fresh, &r->others, shown)) return -1;
            shown = r->clock;
        }
        if (PyList_GET_SIZE(r->ends) && part(item(r->ends, 0), 0) <= r->steps && finish_decodes(r)) return -1;
        if (finish_prompts(r)) return -1;
        if (!r->late) r->early = 0;
        if (show(r, r->late ? &r->fresh_seen : &r->fresh, r->late ? &r->others_seen : &r->others, shown)) return -1;
        if (PyErr_Occurred()) return -1; /* of a number that was none */
    }
    return QUIET;
}

/* PlainReplica.advance; the state is read before, and written back after. */
static int run_on(Plain *r, double until) {
    int planned = 0;
    while (!r->pause) {
        int left = events(r, until, planned);
        if (left <= QUIET) return left;
        if (store(r)) return -1;
        PyObject *done = PyObject_CallMethod(r->replica, "rest", "id", left, until);
        if (!done) return -1;
        planned = PyObject_IsTrue(done);
        Py_DECREF(done);
        if (load(r)) return -1;
    }
    return 0;
}

static double earliest(Plain *r) { /* Replica.earliest */
    double bound = INFINITY, next;
    if (r->fresh.count || r->others.count || r->cut >= 0 || PyObject_Size(r->waiting) > 0) return r->clock;
    if (r->size) {
        Int left = part(item(r->ends, 0), 0) - r->steps - 1;
        double mean = r->context / (double)r->size;
        find_line(r, mean);
        bound = r->clock + 0.999 * (double)(left > 0 ? left : 0) * decode_takes(r, r->size, mean);
    }
    if (PyObject_Size(r->inbox) > 0) {
        next = head_time(r->inbox);
        if (next < r->clock) next = r->clock;
        if (next < bound) bound = next;
    }
    return bound;
}

/* --- the tables of a StepTimes --- */

static int copied_list(PyObject *of, PyObject *name, double **to, Py_ssize_t *count) {
    PyObject *list = PyObject_GetAttr(of, name);
    if (!list) return -1;
    *count = PyList_GET_SIZE(list);
    *to = PyMem_Malloc((*count + 1) * sizeof(double));
    for (Py_ssize_t i = 0; *to && i < *count; i++) (*to)[i] = value_at(list, i);
    Py_DECREF(list);
    if (!*to) PyErr_NoMemory();
    return PyErr_Occurred() ? -1 : 0;
}

static int copied_grid(PyObject *of, PyObject *name, double **to, Py_ssize_t rows, Py_ssize_t columns) {
    Py_buffer view;
    PyObject *grid = PyObject_GetAttr(of, name);
    if (!grid) return -1;
    int failed = PyObject_GetBuffer(grid, &view, PyBUF_FULL_RO);
    Py_DECREF(grid);
    if (failed) return -1;
    if (view.ndim == 2 && view.shape[0] == rows && view.shape[1] == columns && view.format[0] == 'd') {
        *to = PyMem_Malloc(rows * columns * sizeof(double));
        for (Py_ssize_t i = 0; *to && i < rows * columns; i++)
            (*to)[i] = *(double *)((char *)view.buf + i / columns * view.strides[0] + i % columns * view.strides[1]);
        if (!*to) PyErr_NoMemory();
    } else {
        PyErr_SetString(PyExc_TypeError, "a table of steps is of another shape");
    }
    PyBuffer_Release(&view);
    return *to ? 0 : -1;
}

static int read_table(Prices *of, Table *to, PyObject *from) {
    PyObject *launch = NULL;
    to->from = Py_NewRef(from);
    if (kept(&to->shared, from, NAME(shared)) || kept(&to->head, from, NAME(head)) ||
        kept(&to->alone, from, NAME(alone)) || kept(&to->grid, from, NAME(prompt_grid)) ||
        get_double(from, NAME(layers), &to->layers) || kept(&launch, from, NAME(launch)))
        return -1;
    for (int i = 0; i < 2; i++) to->launch[i] = number(PyTuple_GET_ITEM(launch, i));
    Py_DECREF(launch);
    if (copied_list(from, NAME(batch_knots), &to->knots, &to->knots_count)) return -1;
    return copied_grid(from, NAME(decode_grid), &to->decode_grid, to->knots_count, of->contexts_count);
}

static int read_tables(Prices *of, int wide, PyObject *name) { /* of every stage */
    PyObject *tables = PyObject_GetAttr(of->times, name);
    if (!tables) return -1;
    of->stages = PyList_GET_SIZE(tables);
    Table *to = of->tables[wide] = PyMem_Calloc(of->stages, sizeof(Table));
    int failed = !to;
    for (Py_ssize_t i = 0; !failed && i < of->stages; i++) {
        if (i && to[i - 1].from == item(tables, i)) {
            to[i] = to[i - 1];
            to[i].same = 1;
        } else {
            failed = read_table(of, &to[i], item(tables, i));
        }
    }
    Py_DECREF(tables);
    if (!to) PyErr_NoMemory();
    return failed ? -1 : 0;
}

static PyTypeObject *prices_type, *plain_type;

static int prices_traverse(Prices *of, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(of));
    Py_VISIT(of->times);
    return 0;
}

static int prices_clear(Prices *of) {
    Py_CLEAR(of->times);
    return 0;
}

static void prices_dealloc(Prices *of) {
    PyTypeObject *type = Py_TYPE(of);
    PyObject_GC_UnTrack(of);
    prices_clear(of);
    Py_CLEAR(of->news);
    Py_CLEAR(of->pasts);
    for (int i = 0; i < 2; i++) {
        for (Table *table = of->tables[i]; table && table < of->tables[i] + of->stages; table++) {
            PyObject *lists[] = {table->from, table->shared, table->head, table->alone, table->grid};
            if (table->same) continue;
            for (int j = 0; j < 5; j++) Py_XDECREF(lists[j]);
            PyMem_Free(table->decode_grid);
            PyMem_Free(table->knots);
        }
        PyMem_Free(of->tables[i]);
    }
    free_lines(&of->decodes);
    free_lines(&of->passes);
    double *copied[] = {of->contexts, of->floors, of->graph_floors};
    for (int i = 0; i < 3; i++) PyMem_Free(copied[i]);
    type->tp_free(of);
    Py_DECREF(type);
}

/* What is sent to another process, or copied: nothing, so that it is made anew. */
static PyObject *prices_reduce(Prices *of, PyObject *none) {
    return Py_BuildValue("(O())", (PyObject *)Py_TYPE(Py_None));
}

static PyMethodDef prices_methods[] = {{"__reduce__", (PyCFunction)prices_reduce, METH_NOARGS, "None."},
                                       {NULL, NULL, 0, NULL}};

static PyType_Slot prices_slots[] = {{Py_tp_traverse, prices_traverse},
                                     {Py_tp_clear, prices_clear},
                                     {Py_tp_dealloc, prices_dealloc},
                                     {Py_tp_methods, prices_methods},
                                     {0, NULL}};

static PyType_Spec prices_spec = {"inferplan.serving.plain_native.Prices", sizeof(Prices), 0,
                                  Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                                  prices_slots};

static int fill_prices(Prices *of, PyObject *times) {
    double share;
    Py_ssize_t floors;
    of->times = Py_NewRef(times);
    if (copied_list(times, NAME(contexts), &of->contexts, &of->contexts_count) ||
        kept(&of->news, times, NAME(new_knots)) || kept(&of->pasts, times, NAME(past_knots)) ||
        read_tables(of, 0, NAME(narrow)) || read_tables(of, 1, NAME(wide)) ||
        get_double(times, NAME(host), &of->host) || get_double(times, NAME(host_sequence), &of->host_sequence) ||
        get_double(times, NAME(prompt_share), &share) || get_int(times, NAME(graph_tokens), &of->graph_tokens) ||
        copied_list(times, NAME(floors), &of->floors, &floors) ||
        copied_list(times, NAME(graph_floors), &of->graph_floors, &floors))
        return -1;
    of->alike = share == 1.0 && floors == of->stages;
    return 0;
}

static int prices_of(Plain *r) { /* those that the times have, or new ones, which they keep */
    PyObject *times = PyObject_GetAttr(r->replica, NAME(times));
    PyObject *known = times ? PyObject_GetAttr(times, NAME(native)) : NULL, *found = NULL;
    int failed = !known;
    if (known && PyList_GET_SIZE(known) && Py_IS_TYPE(item(known, 0), prices_type)) {
        found = Py_NewRef(item(known, 0));
    } else if (known) {
        found = prices_type->tp_alloc(prices_type, 0);
        failed = !found || fill_prices((Prices *)found, times) || PyList_Insert(known, 0, found);
    }
    Py_XDECREF(known);
    Py_XDECREF(times);
    if (failed) Py_CLEAR(found);
    r->prices = (Prices *)found;
    return failed ? -1 : 0;
}

/* --- the object that a replica has --- */

#define OBJECTS(X) \
    X(replica) X(scheduler) X(rules) X(records) X(admitted) X(decodes) X(clients) X(queue) X(progress) X(inbox) \
    X(waiting) X(running) X(output_left) X(computed_elsewhere) X(own) X(idle) X(again) \
    X(known_fixed) X(prices) X(meter) X(waited) X(ends) \
    X(phases) X(entered) X(joined) X(notify) X(goes_on) X(cluster) X(counted_notify) \
    X(columns[0]) X(columns[1]) X(columns[2]) \
    X(columns[3]) X(columns[4]) X(columns[5])

static int plain_traverse(Plain *r, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(r));
#define X(name) Py_VISIT(r->name);
    OBJECTS(X)
#undef X
    return 0;
}

static int plain_clear(Plain *r) {
#define X(name) Py_CLEAR(r->name);
    OBJECTS(X)
#undef X
    return 0;
}

static void plain_dealloc(Plain *r) {
    PyTypeObject *type = Py_TYPE(r);
    PyObject_GC_UnTrack(r);
    plain_clear(r);
    Tokens *lists[] = {&r->fresh, &r->others, &r->fresh_seen, &r->others_seen, &r->completed};
    for (int i = 0; i < 5; i++) PyMem_Free(lists[i]->at);
    PyMem_Free(r->gaps.gap);
    PyMem_Free(r->gaps.weight);
    type->tp_free(r);
    Py_DECREF(type);
}

static int plain_init(Plain *r, PyObject *args, PyObject *kwargs) {
    PyObject *replica;
    if (kwargs || !PyArg_ParseTuple(args, "O", &replica)) return -1;
    if (r->replica) return 0;
    r->replica = Py_NewRef(replica);
    r->low = INFINITY;
    r->high = -INFINITY;
    r->sink = &r->gaps;
    if (kept(&r->scheduler, replica, NAME(scheduler)) || kept(&r->rules, replica, NAME(rules)) ||
        kept(&r->inbox, replica, NAME(inbox)) ||
        kept(&r->waiting, replica, NAME(waiting)) || kept(&r->records, r->scheduler, NAME(records)) ||
        kept(&r->admitted, r->scheduler, NAME(admitted)) || kept(&r->decodes, r->scheduler, NAME(decodes)) ||
        kept(&r->clients, r->scheduler, NAME(clients)) || kept(&r->queue, r->scheduler, NAME(queue)) ||
        kept(&r->progress, r->scheduler, NAME(progress)) || kept(&r->own, r->admitted, NAME(own)) ||
        kept(&r->output_left, r->progress, NAME(output_left)) ||
        kept(&r->computed_elsewhere, r->progress, NAME(computed_elsewhere)) ||
        kept(&r->again, r->progress, NAME(to_compute)) ||
        kept(&r->known_fixed, r->rules, NAME(known)) || prices_of(r))
        return -1;
    PyObject *cache = PyObject_GetAttr(r->admitted, NAME(cache));
    int failed = !cache || (cache != Py_None && kept(&r->idle, cache, NAME(idle)));
    Py_XDECREF(cache);
    if (failed) return -1;
    if (get_double(r->rules, NAME(capacity), &r->capacity) || get_int(r->rules, NAME(page), &r->page) ||
        get_int(r->rules, NAME(slots), &r->slots) || get_int(r->scheduler, NAME(lane_slots), &r->lane_slots) ||
        get_int(r->rules, NAME(budget), &r->budget) ||
        get_true(r->rules, NAME(windows), &r->windows) || get_true(r->rules, NAME(in_flight), &r->in_flight) ||
        get_true(r->rules, NAME(overlapped), &r->overlapped) || get_true(r->rules, NAME(seen_late), &r->late) ||
        get_double(r->rules, NAME(latency), &r->latency) ||
        get_double(r->rules, NAME(front_request), &r->front_request) ||
        get_double(r->rules, NAME(front_token), &r->front_token))
        return -1;
    return 0;
}

static PyObject *plain_advance(Plain *r, PyObject *until) {
    double time = number(until);
    if (PyErr_Occurred() || load(r) || run_on(r, time) || store(r)) return NULL;
    Py_RETURN_NONE;
}

static PyObject *plain_left(Plain *r, PyObject *args) { /* `notify` of a replica of a fleet */
    Int request;
    double time;
    int finished;
    if (!PyArg_ParseTuple(args, "Ldp", &request, &time, &finished)) return NULL;
    if (!r->fleet) {
        PyErr_SetString(PyExc_RuntimeError, "the replica runs in no fleet");
        return NULL;
    }
    if (left_fleet(r->fleet, r->place, request, time)) return NULL;
    Py_RETURN_NONE;
}

/* Requests pass the front end, one after another, as in RequestQueue.submit_all. */
static int pass_front_end(Plain *r, Int request, double time, double *free_at, double *waited) {
    if (*free_at > time) *waited += *free_at - time;
    else *free_at = time;
    *free_at += r->front_request + r->front_token * (double)r->prompt[request];
    PyObject *entry = pair_of(PyFloat_FromDouble(*free_at + r->latency), PyLong_FromLongLong(request));
    PyObject *done = entry ? PyObject_CallMethodOneArg(r->inbox, NAME(append), entry) : NULL;
    Py_XDECREF(entry);
    Py_XDECREF(done);
    r->queued += r->prompt[request];
    return done ? 0 : -1;
}

static double front_end_waited(PyObject *sums) {
    PyObject *known = PyDict_GetItemWithError(sums, front_end);
    return known ? number(known) : 0.0;
}

static int set_waited(PyObject *sums, double waited) {
    if (!waited) return 0;
    PyObject *value = PyFloat_FromDouble(waited);
    int failed = value ? PyDict_SetItem(sums, front_end, value) : -1;
    Py_XDECREF(value);
    return failed;
}

static PyObject *plain_submit_all(Plain *r, PyObject *args) {
    Py_buffer requests, times;
    double free_at, waited;
    int failed = -1;
    if (!PyArg_ParseTuple(args, "y*y*", &requests, &times)) return NULL;
    if (kept(&r->meter, r->scheduler, NAME(meter)) || kept(&r->waited, r->meter, NAME(waited)) ||
        column(r, 0, NAME(prompt), &r->prompt, "q") || get_double(r->queue, NAME(front_free), &free_at))
        goto done;
    waited = front_end_waited(r->waited);
    r->queued = 0;
    for (Py_ssize_t i = 0; i < requests.len / (Py_ssize_t)sizeof(Int); i++)
        if (pass_front_end(r, ((Int *)requests.buf)[i], ((double *)times.buf)[i], &free_at, &waited)) goto done;
    failed = set_double(r->queue, NAME(front_free), free_at) || store_queued(r) || set_waited(r->waited, waited);
done:
    PyBuffer_Release(&requests);
    PyBuffer_Release(&times);
    if (failed) return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef plain_methods[] = {
    {"advance", (PyCFunction)plain_advance, METH_O, "Make every step that starts before a time, up to a pause."},
    {"left", (PyCFunction)plain_left, METH_VARARGS, "A request leaves, in a run of `serve`."},
    {"submit_all", (PyCFunction)plain_submit_all, METH_VARARGS, "Requests reach the front end at these times."},
    {NULL, NULL, 0, NULL}};

static PyType_Slot plain_slots[] = {{Py_tp_traverse, plain_traverse}, {Py_tp_clear, plain_clear},
                                    {Py_tp_dealloc, plain_dealloc},   {Py_tp_init, plain_init},
                                    {Py_tp_methods, plain_methods},   {0, NULL}};

static PyType_Spec plain_spec = {"inferplan.serving.plain_native.Plain", sizeof(Plain), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, plain_slots};

/* --- replicas behind a router, which may come and go --- */

enum { ASIDE = 1 << 14 }; /* requests that are sent until what became of those before need not be at hand */

typedef struct {
    double time;
    Int place;
} Leaving;

struct Fleet {
    PyObject *cluster, *progress, *records, *engines, *events, *handlers, *router, *waiting;
    Plain **of;
    Int count, leaves, done, turns, takers;
    int by_loads;
    double *due, *loads;
    Int *by_due, *by_load; /* trees: the place of the least below each node, of equals the first */
    Int *taking;           /* places of those that take requests, in turn */
    Leaving *leaving;      /* a heap, by time */
    Py_ssize_t leaving_count, leaving_room;
    Gaps gaps;
};

static inline Int lesser(const double *values, Int one, Int other) {
    return other < 0 || (one >= 0 && values[one] <= values[other]) ? one : other;
}

static void set_value(struct Fleet *fleet, double *values, Int *tree, Int place, double value) {
    values[place] = value;
    for (Int node = (fleet->leaves + place) >> 1; node; node >>= 1)
        tree[node] = lesser(values, tree[2 * node], tree[2 * node + 1]);
}

static int left_fleet(struct Fleet *fleet, Int place, Int request, double time) {
    (void)request;
    if (fleet->leaving_count == fleet->leaving_room) {
        Py_ssize_t room = fleet->leaving_room ? 2 * fleet->leaving_room : 256;
        Leaving *more = PyMem_Realloc(fleet->leaving, room * sizeof(Leaving));
        if (!more) {
            PyErr_NoMemory();
            return -1;
        }
        fleet->leaving = more;
        fleet->leaving_room = room;
    }
    Py_ssize_t at = fleet->leaving_count++;
    while (at && time < fleet->leaving[(at - 1) >> 1].time) {
        fleet->leaving[at] = fleet->leaving[(at - 1) >> 1];
        at = (at - 1) >> 1;
    }
    fleet->leaving[at].time = time;
    fleet->leaving[at].place = place;
    fleet->done++;
    if (fleet->progress == Py_None || fleet->done % 64) return 0;
    PyObject *told = PyObject_CallFunction(fleet->progress, "L", fleet->done);
    Py_XDECREF(told);
    return told ? 0 : -1;
}

static Int next_to_leave(struct Fleet *fleet) {
    Leaving *heap = fleet->leaving, last = heap[--fleet->leaving_count];
    Int found = heap[0].place;
    Py_ssize_t count = fleet->leaving_count, at = 0, child;
    while ((child = 2 * at + 1) < count) {
        if (child + 1 < count && heap[child + 1].time < heap[child].time) child++;
        if (last.time <= heap[child].time) break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = last;
    return found;
}

static void see(struct Fleet *fleet, double time) { /* Router._see */
    while (fleet->leaving_count && fleet->leaving[0].time <= time) {
        Int place = next_to_leave(fleet);
        set_value(fleet, fleet->loads, fleet->by_load, place, fleet->loads[place] - 1);
    }
}

/* A client sends a request: it goes to the front end of a replica, or waits for one. */
static int send(struct Fleet *fleet, Int request, double time) {
    double free_at;
    if (!fleet->takers) {
        PyObject *waits = PyLong_FromLongLong(request);
        int failed = waits ? PyList_Append(fleet->waiting, waits) : -1;
        Py_XDECREF(waits);
        return failed;
    }
    see(fleet, time);
    Int place = fleet->by_loads ? fleet->by_load[1] : fleet->taking[fleet->turns++ % fleet->takers];
    Plain *r = fleet->of[place];
    set_value(fleet, fleet->loads, fleet->by_load, place, fleet->loads[place] + 1);
    double waited = front_end_waited(r->waited);
    if (get_double(r->queue, NAME(front_free), &free_at) || pass_front_end(r, request, time, &free_at, &waited) ||
        set_double(r->queue, NAME(front_free), free_at) || set_waited(r->waited, waited))
        return -1;
    set_value(fleet, fleet->due, fleet->by_due, place, earliest(r));
    return PyErr_Occurred() ? -1 : 0;
}

static int for_all(struct Fleet *fleet, int (*of)(Plain *)) {
    for (Int i = 0; i < fleet->count; i++)
        if (of(fleet->of[i])) return -1;
    return 0;
}

/* The meters begin to count, or stop: all are brought up to it, and Python does the rest. */
static int mark(struct Fleet *fleet, PyObject *handler, PyObject *event, Int sent) {
    double time = number(PyTuple_GET_ITEM(event, 0));
    for (Int i = 0; i < fleet->count; i++)
        if (run_on(fleet->of[i], time)) return -1;
    if (for_all(fleet, store) || set_int(fleet->cluster, NAME(sent), sent)) return -1;
    PyObject *done = PyObject_CallOneArg(handler, event);
    Py_XDECREF(done);
    return done ? for_all(fleet, load) : -1;
}

/* --- those that there are --- */

static int grown(void *array, Py_ssize_t entries, size_t size) { /* array: where the pointer to it is */
    void *old, *more;
    memcpy(&old, array, sizeof(void *));
    more = PyMem_Realloc(old, (size_t)entries * size);
    if (more) memcpy(array, &more, sizeof(void *));
    else PyErr_NoMemory();
    return more ? 0 : -1;
}

static int more_room(struct Fleet *fleet, Int count) { /* nobody is in the trees then */
    Int leaves = fleet->leaves ? fleet->leaves : 2;
    while (leaves < count) leaves *= 2;
    fleet->leaves = leaves;
    return grown(&fleet->of, leaves, sizeof(Plain *)) || grown(&fleet->due, leaves, sizeof(double)) ||
           grown(&fleet->loads, leaves, sizeof(double)) || grown(&fleet->taking, leaves, sizeof(Int)) ||
           grown(&fleet->by_due, 2 * leaves, sizeof(Int)) || grown(&fleet->by_load, 2 * leaves, sizeof(Int));
}

static int join(struct Fleet *fleet, PyObject *engine) { /* another replica */
    PyObject *found = PyObject_GetAttr(engine, NAME(native));
    if (!found) return -1;
    if (!Py_IS_TYPE(found, plain_type)) {
        PyErr_SetString(PyExc_TypeError, "a replica of the fleet is not plain");
        Py_DECREF(found);
        return -1;
    }
    Int place = fleet->count++;
    Plain *r = fleet->of[place] = (Plain *)found;
    r->fleet = fleet;
    r->place = place;
    r->sink = &fleet->gaps;
    fleet->due[place] = INFINITY;
    fleet->loads[place] = 0;
    if (set_taken(r->clients, NAME(notify), PyObject_GetAttr(found, NAME(left))) || load(r)) return -1;
    r->pause = 0;
    fleet->due[place] = earliest(r);
    return PyErr_Occurred() ? -1 : 0;
}

static void plant(struct Fleet *fleet, const double *values, Int *tree) { /* from its leaves */
    for (Int node = fleet->leaves - 1; node; node--) tree[node] = lesser(values, tree[2 * node], tree[2 * node + 1]);
}

/* The engines that the cluster has now, and those of them that the router has take requests. */
static int gather(struct Fleet *fleet) {
    Int count = PyList_GET_SIZE(fleet->engines);
    if ((count > fleet->leaves || !fleet->leaves) && more_room(fleet, count)) return -1;
    while (fleet->count < count)
        if (join(fleet, item(fleet->engines, fleet->count))) return -1;
    PyObject *taking = PyObject_GetAttr(fleet->router, NAME(taking));
    if (!taking) return -1;
    for (Int i = 0; i < fleet->leaves; i++) {
        fleet->by_due[fleet->leaves + i] = i < count ? i : -1;
        fleet->by_load[fleet->leaves + i] = -1;
    }
    fleet->takers = PyList_GET_SIZE(taking);
    for (Int i = 0; i < fleet->takers; i++) {
        Int place = fleet->taking[i] = PyLong_AsLongLong(item(taking, i));
        fleet->by_load[fleet->leaves + place] = place;
    }
    Py_DECREF(taking);
    plant(fleet, fleet->due, fleet->by_due);
    plant(fleet, fleet->loads, fleet->by_load);
    return PyErr_Occurred() ? -1 : 0;
}

static int tell_router(struct Fleet *fleet, double time) { /* how many requests each replica has */
    see(fleet, time);
    PyObject *loads = PyObject_GetAttr(fleet->router, NAME(loads));
    int failed = !loads;
    for (Int i = 0; !failed && i < fleet->count; i++) {
        PyObject *value = PyLong_FromLongLong((Int)fleet->loads[i]);
        failed = !value || PyList_SetItem(loads, (Py_ssize_t)i, value);
    }
    Py_XDECREF(loads);
    return failed ? -1 : 0;
}

/* The first of the events that a process has planned: one of a request sends it, all others are Python's. */
static int happen(struct Fleet *fleet) {
    PyObject *event = PyObject_CallOneArg(heappop, fleet->events);
    if (!event) return -1;
    double time = number(PyTuple_GET_ITEM(event, 0));
    int failed = -1;
    if (part(event, 1) >= 0) {
        failed = send(fleet, part(event, 1), time);
    } else if (!tell_router(fleet, time)) {
        PyObject *handler = PyObject_GetItem(fleet->handlers, PyTuple_GET_ITEM(event, 2));
        PyObject *done = handler ? PyObject_CallOneArg(handler, event) : NULL;
        Py_XDECREF(handler);
        Py_XDECREF(done);
        failed = done ? gather(fleet) : -1;
    }
    Py_DECREF(event);
    return failed;
}

typedef struct {
    PyObject *marks, *handler;
    Py_buffer requests, times;
} Load;

static inline Int request_at(const Load *of, Py_ssize_t at) { /* those that are not named come as they stand */
    return of->requests.len ? ((Int *)of->requests.buf)[at] : (Int)at;
}

static int send_next(struct Fleet *fleet, Load *of, Py_ssize_t sent) {
    if (sent && !(sent % ASIDE)) {
        PyObject *done = PyObject_CallMethodNoArgs(fleet->records, NAME(put_aside));
        Py_XDECREF(done);
        if (!done) return -1;
    }
    return send(fleet, request_at(of, sent), ((double *)of->times.buf)[sent]);
}

static int serve_all(struct Fleet *fleet, Load *of) { /* Clock.run_until_quiet, where nothing connects engines */
    Py_ssize_t sent = 0, count = of->times.len / (Py_ssize_t)sizeof(double), marked = 0;
    Py_ssize_t marks = PyList_GET_SIZE(of->marks), rounds = 0;
    const double *times = of->times.buf;
    while (1) {
        Int place = fleet->by_due[1];
        double first = place < 0 ? INFINITY : fleet->due[place], next = sent < count ? times[sent] : INFINITY;
        double at = marked < marks ? number(PyTuple_GET_ITEM(item(of->marks, marked), 0)) : INFINITY;
        PyObject *event = PyList_GET_SIZE(fleet->events) ? item(fleet->events, 0) : NULL;
        double planned = event ? number(PyTuple_GET_ITEM(event, 0)) : INFINITY;
        double coming = at <= next ? at : next;
        if (planned < coming) coming = planned;
        if (coming == INFINITY && first == INFINITY) break;
        if (!(++rounds & 1023) && PyErr_CheckSignals()) return -1;
        if (coming > first) {
            double past = first * (1 + 1e-12) + 1e-9;
            if (run_on(fleet->of[place], coming >= past ? coming : past)) return -1;
            set_value(fleet, fleet->due, fleet->by_due, place, earliest(fleet->of[place]));
            if (PyErr_Occurred()) return -1;
        } else if (at <= coming) {
            if (mark(fleet, of->handler, item(of->marks, marked++), sent)) return -1;
        } else if (planned <= coming && (planned < next || part(event, 1) < request_at(of, sent))) {
            if (happen(fleet)) return -1;
        } else if (send_next(fleet, of, sent++)) {
            return -1;
        }
    }
    return set_int(fleet->cluster, NAME(sent), sent) || set_int(fleet->cluster, NAME(done), fleet->done) ||
           set_int(fleet->router, NAME(turns_taken), fleet->turns);
}

static int set_out(struct Fleet *fleet) {
    PyObject *of = fleet->cluster;
    return kept(&fleet->progress, of, NAME(progress)) || kept(&fleet->records, of, NAME(records)) ||
           kept(&fleet->engines, of, NAME(engines)) || kept(&fleet->events, of, NAME(events)) ||
           kept(&fleet->handlers, of, NAME(handlers)) || kept(&fleet->router, of, NAME(front)) ||
           kept(&fleet->waiting, of, NAME(waiting)) || get_int(of, NAME(done), &fleet->done) ||
           get_int(fleet->router, NAME(turns_taken), &fleet->turns) || gather(fleet);
}

static void disperse(struct Fleet *fleet) {
    for (Int i = 0; i < fleet->count; i++) {
        fleet->of[i]->fleet = NULL;
        fleet->of[i]->sink = &fleet->of[i]->gaps;
        Py_DECREF(fleet->of[i]);
    }
    void *parts[] = {fleet->of,      fleet->due,    fleet->loads,   fleet->taking,      fleet->by_due,
                     fleet->by_load, fleet->leaving, fleet->gaps.gap, fleet->gaps.weight};
    for (int i = 0; i < 9; i++) PyMem_Free(parts[i]);
    PyObject *known[] = {fleet->progress, fleet->records, fleet->engines, fleet->events,
                         fleet->handlers, fleet->router,  fleet->waiting};
    for (int i = 0; i < 7; i++) Py_XDECREF(known[i]);
}

static PyObject *serve(PyObject *module, PyObject *args) {
    struct Fleet fleet = {0};
    Load of;
    if (!PyArg_ParseTuple(args, "Opy*y*O!O", &fleet.cluster, &fleet.by_loads, &of.requests, &of.times, &PyList_Type,
                          &of.marks, &of.handler))
        return NULL;
    int failed = set_out(&fleet) || serve_all(&fleet, &of) || for_all(&fleet, store);
    disperse(&fleet);
    PyBuffer_Release(&of.requests);
    PyBuffer_Release(&of.times);
    if (failed) return NULL;
    Py_RETURN_NONE;
}

/* --- a pipeline: plain_pipeline.py --- */

typedef struct { /* a batch of the scheduler, which has some of it while it is that whose turn it is */
    PyObject *decodes, *ends, *phases, *entered, *joined;
    Int size, steps;
    double context, token_time;
} Lane;

typedef struct { /* a Batch; of its loads what one rank has */
    Int lane, decoding;
    PyObject *loads, *prompts; /* prompts: a Chunk, or None, which the loads have */
    double back;
} Flight;

typedef struct {
    Plain r;
    PyObject *pipeline_ranks, *shop;
    Lane *lanes;
    Flight *flying;
    Int *idle, count, lanes_count, at, unchanged, sent; /* count: batches in flight; at: the lane whose turn it is */
    Py_ssize_t stations;
    int waits, tried, loads; /* loads: the next step waits for something from the host */
    double *free, *work, metered, grown;
} Pipe;

static void keep_lane(Pipe *p) {
    Lane *lane = &p->lanes[p->at];
    lane->size = p->r.size;
    lane->steps = p->r.steps;
    lane->context = p->r.context;
}

static void turn_to(Pipe *p, Int at) {
    Plain *r = &p->r;
    Lane *lane = &p->lanes[at];
    if (at == p->at) return;
    keep_lane(p);
    p->at = at;
    Py_XSETREF(r->decodes, Py_NewRef(lane->decodes));
    Py_XSETREF(r->ends, Py_NewRef(lane->ends));
    Py_XSETREF(r->phases, Py_NewRef(lane->phases));
    Py_XSETREF(r->entered, Py_NewRef(lane->entered));
    Py_XSETREF(r->joined, Py_NewRef(lane->joined));
    r->size = lane->size;
    r->steps = lane->steps;
    r->context = lane->context;
}

static int read_lane(Lane *lane) {
    PyObject *of = lane->decodes;
    return kept(&lane->ends, of, NAME(ends)) || kept(&lane->phases, of, NAME(phases)) ||
                   kept(&lane->entered, of, NAME(requests)) || kept(&lane->joined, of, NAME(joined)) ||
                   get_int(of, NAME(size), &lane->size) || get_int(of, NAME(steps), &lane->steps) ||
                   get_double(of, NAME(context), &lane->context) || get_double(of, NAME(token_time), &lane->token_time)
               ? -1
               : 0;
}

static int write_lane(Lane *lane) {
    PyObject *of = lane->decodes;
    return set_int(of, NAME(size), lane->size) || set_int(of, NAME(steps), lane->steps) ||
                   set_double(of, NAME(context), lane->context) || set_double(of, NAME(token_time), lane->token_time)
               ? -1
               : 0;
}

static int read_flight(Flight *flight, PyObject *batch) {
    PyObject *load = item(PyTuple_GET_ITEM(batch, 1), 0);
    flight->lane = part(batch, 0);
    Py_XSETREF(flight->loads, Py_NewRef(PyTuple_GET_ITEM(batch, 1)));
    flight->decoding = part(load, 0);
    flight->prompts = PyTuple_GET_ITEM(load, 1);
    flight->back = number(PyTuple_GET_ITEM(batch, 2));
    return PyErr_Occurred() ? -1 : 0;
}

static int read_flying(Pipe *p) {
    PyObject *flying = PyObject_GetAttr(p->r.replica, NAME(flying)), *batch;
    int failed = !flying;
    p->count = failed ? 0 : (Int)PyObject_Size(flying);
    for (Int i = 0; !failed && i < p->count; i++) {
        batch = PySequence_GetItem(flying, (Py_ssize_t)i);
        failed = !batch || read_flight(&p->flying[i], batch);
        Py_XDECREF(batch);
    }
    Py_XDECREF(flying);
    PyObject *idle = failed ? NULL : PyObject_GetAttr(p->r.replica, NAME(idle)), *lane;
    failed = !idle;
    for (Int i = 0; !failed && i < p->lanes_count - p->count; i++) {
        lane = PySequence_GetItem(idle, (Py_ssize_t)i);
        failed = !lane;
        if (lane) p->idle[i] = PyLong_AsLongLong(lane);
        Py_XDECREF(lane);
    }
    Py_XDECREF(idle);
    return failed ? -1 : 0;
}

static int read_free(Pipe *p) { /* when each station is */
    PyObject *free_at = PyObject_GetAttr(p->shop, NAME(free));
    if (!free_at) return -1;
    for (Py_ssize_t i = 0; i < p->stations; i++) p->free[i] = value_at(free_at, i);
    Py_DECREF(free_at);
    return PyErr_Occurred() ? -1 : 0;
}

static int load_pipe(Pipe *p) {
    Plain *r = &p->r;
    double host_loads, layer_loads;
    if (kept(&r->decodes, r->scheduler, NAME(decodes))) return -1;
    for (Int i = 0; i < p->lanes_count; i++) {
        if (read_lane(&p->lanes[i])) return -1;
        if (p->lanes[i].decodes == r->decodes) p->at = i;
    }
    Py_XSETREF(r->joined, Py_NewRef(p->lanes[p->at].joined));
    if (load(r) || read_flying(p) || read_free(p) || get_int(r->replica, NAME(unchanged), &p->unchanged) ||
        get_true(r->replica, NAME(waits), &p->waits) || get_true(r->replica, NAME(tried), &p->tried) ||
        get_double(p->pipeline_ranks, NAME(metered), &p->metered) || get_int(p->pipeline_ranks, NAME(sent), &p->sent) ||
        get_double(r->admitted, NAME(grown), &p->grown) || get_double(r->admitted, NAME(host_loads), &host_loads) ||
        get_double(r->admitted, NAME(layer_loads), &layer_loads))
        return -1;
    p->loads = host_loads || layer_loads;
    return 0;
}

static int write_flying(Pipe *p) {
    PyObject *flying = PyObject_GetAttr(p->r.replica, NAME(flying)), *idle, *done;
    idle = flying ? PyObject_GetAttr(p->r.replica, NAME(idle)) : NULL;
    int failed = !idle;
    PyObject *queues[2] = {flying, idle};
    for (int i = 0; !failed && i < 2; i++) {
        done = PyObject_CallMethod(queues[i], "clear", NULL);
        failed = !done;
        Py_XDECREF(done);
    }
    for (Int i = 0; !failed && i < p->lanes_count; i++) {
        Flight *one = &p->flying[i];
        PyObject *entry = i < p->count ? PyObject_CallFunction(batch_of, "LOd", one->lane, one->loads, one->back)
                                       : PyLong_FromLongLong(p->idle[i - p->count]);
        done = entry ? PyObject_CallMethodOneArg(queues[i >= p->count], NAME(append), entry) : NULL;
        failed = !done;
        Py_XDECREF(entry);
        Py_XDECREF(done);
    }
    Py_XDECREF(flying);
    Py_XDECREF(idle);
    return failed ? -1 : 0;
}

static int write_free(Pipe *p) {
    PyObject *free_at = PyList_New(p->stations);
    for (Py_ssize_t i = 0; free_at && i < p->stations; i++) {
        PyObject *time = PyFloat_FromDouble(p->free[i]);
        if (!time) Py_CLEAR(free_at);
        else PyList_SET_ITEM(free_at, i, time);
    }
    return set_taken(p->shop, NAME(free), free_at);
}

static int store_pipe(Pipe *p) {
    Plain *r = &p->r;
    keep_lane(p);
    for (Int i = 0; i < p->lanes_count; i++)
        if (write_lane(&p->lanes[i])) return -1;
    return PyObject_SetAttr(r->scheduler, NAME(decodes), r->decodes) || store(r) || write_flying(p) || write_free(p) ||
                   set_int(r->replica, NAME(unchanged), p->unchanged) ||
                   PyObject_SetAttr(r->replica, NAME(waits), p->waits ? Py_True : Py_False) ||
                   PyObject_SetAttr(r->replica, NAME(tried), p->tried ? Py_True : Py_False) ||
                   set_double(p->pipeline_ranks, NAME(metered), p->metered) ||
                   set_int(p->pipeline_ranks, NAME(sent), p->sent) || set_double(r->admitted, NAME(grown), p->grown)
               ? -1
               : 0;
}

/* What takes more ado is a method of the pipeline or its ranks, which says whether it did anything. */
static int in_python(Pipe *p, PyObject *of, const char *method, const double *time) {
    if (store_pipe(p)) return -1;
    PyObject *said = time ? PyObject_CallMethod(of, method, "d", *time) : PyObject_CallMethod(of, method, NULL);
    int did = said ? PyObject_IsTrue(said) : -1;
    Py_XDECREF(said);
    return did < 0 || load_pipe(p) ? -1 : did;
}

static Int crossing_of(Pipe *p, Int lane, Int later) {
    Lane *of = &p->lanes[lane];
    return PyLong_AsLongLong(item(of->phases, (Py_ssize_t)modulo(-(of->steps + later), p->r.page)));
}

static int count_time(Pipe *p, double now) { /* _meter */
    Plain *r = &p->r;
    double duration = now - p->metered, share = r->used / r->capacity, grown = p->grown / r->capacity;
    Int sent = p->sent, decodes = 0;
    if (p->count && (sent || now > p->metered)) {
        for (Int i = 0; i < p->count; i++) decodes += p->flying[i].decoding;
        r->all_steps += sent;
        r->busy += duration;
        r->batch_seconds += (double)decodes * duration;
        r->kv_seconds += (sent > 1 ? share - grown * (double)(sent - 1) / (double)(2 * sent) : share) * duration;
        if (share > r->kv_peak) r->kv_peak = share;
        p->grown = 0.0;
        Py_ssize_t waiting = PyObject_Size(r->waiting);
        if (waiting && waits_for(r, waiting, duration)) return -1;
    }
    p->metered = now;
    p->sent = 0;
    return 0;
}

static int make_tokens(Pipe *p, double time) {
    Plain *r = &p->r;
    Lane *lane = &p->lanes[p->at];
    Int others = r->size - (Int)PyDict_GET_SIZE(r->joined), taken = crossing(r, 0) * r->page;
    PyObject *request, *joined;
    Py_ssize_t place = 0;
    while (PyDict_Next(r->joined, &place, &request, &joined))
        if (add_gap(r->sink, time - number(joined), 1.0)) return -1;
    if (place) PyDict_Clear(r->joined);
    if (add_gap(r->sink, time - lane->token_time, (double)others)) return -1;
    lane->token_time = time;
    r->steps++;
    r->context += (double)r->size;
    r->used += (double)taken;
    p->grown += (double)taken;
    r->decoded += (double)r->size;
    return 0;
}

static int make_runs(Pipe *p, double since, Int steps, double time) {
    Plain *r = &p->r;
    Int made = steps * r->size, taken = blocks_taken(r, steps) * r->page;
    if (add_gap(r->sink, (time - since) / (double)steps, (double)made)) return -1;
    p->lanes[p->at].token_time = time;
    r->steps += steps;
    r->context += (double)made;
    r->used += (double)taken;
    p->grown += (double)taken;
    r->decoded += (double)made;
    return 0;
}

static double pass_stations(double *free_at, Py_ssize_t stations, double start, const double *seconds) { /* send */
    double host = seconds[0], clock = free_at[0];
    clock = free_at[0] = (start > clock ? start : clock) + host;
    for (Py_ssize_t i = 1; i < stations; i++) {
        double ready = free_at[i] + host;
        clock = free_at[i] = (ready > clock ? ready : clock) + seconds[i];
    }
    return clock;
}

static volatile double two = 2.0, half = 0.5; /* powers that the compiler does not know, so that it calls pow too */

static double fourth(double seconds, double floor_time) { /* _fourth of phase.py */
    return pow(pow(pow(pow(seconds, two), two) + pow(pow(floor_time, two), two), half), half);
}

static int read_stations(Pipe *p, PyObject *made, double *to) { /* takes the reference */
    if (!made) return -1;
    for (Py_ssize_t i = 0; i < p->stations; i++) to[i] = value_at(made, i);
    Py_DECREF(made);
    return PyErr_Occurred() ? -1 : 0;
}

static int staged_with_prompts(Pipe *p, Chunk *chunk, PyObject *prompts, double *to) {
    Plain *r = &p->r;
    Prices *of = r->prices;
    double mean = mean_context(r);
    int wide = chunk->tokens > wide_from * chunk->prompts, any = 0;
    if (!in_tables(r, chunk, wide)) {
        PyObject *method = PyObject_GetAttr(of->times, NAME(staged_with_prompts));
        PyObject *made = method ? PyObject_CallFunction(method, "LdO", r->size, mean, prompts) : NULL;
        Py_XDECREF(method);
        return read_stations(p, made, to);
    }
    to[0] = of->host + of->host_sequence * (double)(r->size + chunk->prompts);
    for (Py_ssize_t i = 0; i < of->stages; i++) {
        if (of->tables[wide][i].same) to[i + 1] = to[i];
        else if (stage_takes(r, chunk, &of->tables[wide][i], mean, &to[i + 1])) return -1;
    }
    const double *floors = r->size + chunk->tokens > of->graph_tokens ? of->floors : of->graph_floors;
    for (Py_ssize_t i = 0; i < of->stages; i++) any = any || floors[i];
    for (Py_ssize_t i = 0; any && i < of->stages; i++) to[i + 1] = fourth(to[i + 1], floors[i]);
    return 0;
}

static PyObject *prompts_of(Plain *r, Chunk *chunk) { /* a Chunk of step_times.py */
    PyObject *completed = PyList_New(r->completed.count), *made;
    for (Py_ssize_t i = 0; completed && i < r->completed.count; i++) {
        PyObject *request = PyLong_FromLongLong(r->completed.at[i].request);
        if (!request) Py_CLEAR(completed);
        else PyList_SET_ITEM(completed, i, request);
    }
    PyObject *cut = r->cut < 0 ? Py_NewRef(Py_None) : PyLong_FromLongLong(r->cut);
    made = completed && cut ? PyObject_CallFunction(chunk_of, "LLdOO", chunk->prompts, chunk->tokens, chunk->pairs,
                                                    completed, cut)
                            : NULL;
    Py_XDECREF(completed);
    Py_XDECREF(cut);
    return made;
}

static int take_off(Pipe *p, double now, const double *seconds, PyObject *loads) { /* takes the reference to loads */
    Plain *r = &p->r;
    Flight *flight = &p->flying[p->count];
    if (!loads) return -1;
    double back = pass_stations(p->free, p->stations, now, seconds);
    r->previous = now;
    r->clock = p->free[0];
    p->unchanged++;
    p->sent = 1;
    Py_XSETREF(flight->loads, loads);
    flight->prompts = PyTuple_GET_ITEM(item(loads, 0), 1);
    flight->lane = p->at;
    flight->decoding = r->size;
    flight->back = back;
    p->count++;
    return r->size ? make_tokens(p, back) : 0;
}

/* _send: whether a batch was composed, of the lane whose turn it is. */
static int compose(Pipe *p) {
    Plain *r = &p->r;
    Int lane = p->idle[0];
    double now = r->clock, *seconds = p->work;
    Chunk chunk = {0, 0, 0.0};
    r->completed.count = 0;
    if ((p->sent || now > p->metered) && count_time(p, now)) return -1;
    turn_to(p, lane);
    if (PyObject_Size(r->inbox) > 0 && head_time(r->inbox) <= now) {
        p->unchanged = 0;
        if (arrive(r, now)) return -1;
    }
    if (p->loads) return in_python(p, p->r.replica, "_send", NULL);
    if (r->cut >= 0 || PyObject_Size(r->waiting) > 0) {
        Int running = (Int)PyDict_GET_SIZE(r->running), taken = 0;
        int more = r->elsewhere ? begin_computed(r) : plan(r, &chunk);
        if (more > 0) {
            keep_lane(p);
            for (Int i = 0; i < p->lanes_count; i++) taken += crossing_of(p, i, 0) * r->page;
            more = is_blocked(r, (double)taken);
        }
        if (more) return more < 0 ? -1 : in_python(p, p->r.replica, "_send", NULL);
        if (chunk.prompts || (Int)PyDict_GET_SIZE(r->running) != running) p->unchanged = 0;
    }
    if (chunk.prompts) {
        r->prompt_steps++;
        r->computed_tokens += (double)chunk.tokens;
        if ((double)(chunk.tokens + r->size) > r->largest) r->largest = (double)(chunk.tokens + r->size);
    } else {
        if ((double)(r->size * r->page) > r->capacity - r->used) return in_python(p, p->r.replica, "_send", NULL);
        if (!r->size) return 0;
    }
    PyObject *prompts = chunk.prompts ? prompts_of(r, &chunk) : Py_NewRef(Py_None);
    int failed = !prompts || (chunk.prompts ? staged_with_prompts(p, &chunk, prompts, seconds)
                                            : pass_takes(r, r->size, r->context / (double)r->size, seconds));
    PyObject *load = failed ? NULL : PyObject_CallFunction(rank_load, "LO", r->size, prompts);
    PyObject *loads = load ? PyList_New(1) : NULL;
    Py_XDECREF(prompts);
    if (!loads) {
        Py_XDECREF(load);
        return -1;
    }
    PyList_SET_ITEM(loads, 0, load);
    memmove(p->idle, p->idle + 1, (size_t)(p->lanes_count - p->count - 1) * sizeof(Int));
    return take_off(p, now, seconds, loads) ? -1 : 1;
}

static void land(Pipe *p) { /* the oldest batch is in flight no longer; its loads lie behind the others */
    Flight first = p->flying[0];
    memmove(p->flying, p->flying + 1, (size_t)--p->count * sizeof(Flight));
    p->flying[p->count] = first;
}

static int note_completed(Plain *r, PyObject *completed) { /* those that still run */
    r->completed.count = 0;
    for (Py_ssize_t i = 0; i < PyObject_Size(completed); i++) {
        PyObject *request = PySequence_GetItem(completed, i);
        int runs = request ? PyDict_Contains(r->running, request) : -1;
        int failed = runs < 0 || (runs && add_token(&r->completed, PyLong_AsLongLong(request), FIRST));
        Py_XDECREF(request);
        if (failed) return -1;
    }
    return 0;
}

static int take_back(Pipe *p) {
    Plain *r = &p->r;
    Flight *flight = &p->flying[0];
    double back = flight->back;
    PyObject *prompts = flight->prompts;
    Int lane = flight->lane, decoding = flight->decoding;
    if (prompts != Py_None && (PyDict_GET_SIZE(r->output_left) || PyDict_GET_SIZE(r->again)))
        return in_python(p, p->r.replica, "_take_back", NULL) < 0 ? -1 : 0;
    if (back > r->clock) r->clock = back;
    if (count_time(p, r->clock)) return -1;
    memmove(p->idle + 1, p->idle, (size_t)(p->lanes_count - p->count) * sizeof(Int));
    p->idle[0] = lane;
    land(p);
    p->waits = 0;
    turn_to(p, lane);
    if (decoding && PyList_GET_SIZE(r->ends) && part(item(r->ends, 0), 0) <= r->steps) {
        if (finish_decodes(r)) return -1;
        p->unchanged = 0;
    }
    if (prompts != Py_None) {
        p->unchanged = 0;
        r->back = back;
        if (note_completed(r, PyTuple_GET_ITEM(prompts, 3)) || finish_prompts(r)) return -1;
    }
    return show(r, &r->fresh, &r->others, back);
}

static int unseen(Plain *r) { return r->fresh.count || r->others.count; }

/* The oldest batch comes back and goes round once more; 0 where anything is to be done in between. */
static int again(Pipe *p) {
    Plain *r = &p->r;
    Flight *flight = &p->flying[0];
    double now = flight->back > r->clock ? flight->back : r->clock;
    if (r->cut >= 0 || unseen(r) || PyObject_Size(r->waiting) > 0 || flight->prompts != Py_None || p->loads) return 0;
    if (PyObject_Size(r->inbox) > 0 && head_time(r->inbox) <= now) return 0;
    keep_lane(p);
    Lane *lane = &p->lanes[flight->lane];
    if (lane->size != flight->decoding || part(item(lane->ends, 0), 0) <= lane->steps) return 0;
    if ((double)(lane->size * r->page) > r->capacity - r->used) return 0;
    if (count_time(p, now)) return -1;
    turn_to(p, flight->lane);
    PyObject *loads = Py_NewRef(flight->loads);
    land(p);
    if (pass_takes(r, r->size, r->context / (double)r->size, p->work)) {
        Py_DECREF(loads);
        return -1;
    }
    if (take_off(p, now, p->work, loads)) return -1;
    p->tried = p->count == p->lanes_count;
    p->waits = p->tried || p->flying[0].back <= r->clock;
    return 1;
}

static Int steps_within_lanes(Pipe *p, Int size, double room) {
    Int page = p->r.page, cycles = (Int)floor_div(room, (double)(size * page));
    room -= (double)(cycles * size * page);
    for (Int step = 0; step < page; step++) {
        Int blocks = 0;
        for (Int i = 0; i < p->lanes_count; i++) blocks += crossing_of(p, i, step);
        room -= (double)(blocks * page);
        if (room < 0) return cycles * page + step;
    }
    return (cycles + 1) * page;
}

/* _alike: how many cycles there could be, and before when each must be sent; -1 where it takes more ado. */
static Int alike(Pipe *p, double *bound) {
    Plain *r = &p->r;
    Py_ssize_t waiting = PyObject_Size(r->waiting);
    Int count = (Int)1 << 60, size = 0;
    double room = r->capacity - r->used;
    if (r->cut >= 0 || r->is_short || unseen(r)) return 0;
    if (waiting && (p->unchanged < p->count || !p->tried)) return 0;
    keep_lane(p);
    for (Int i = 0; i < p->count; i++) {
        Lane *lane = &p->lanes[p->flying[i].lane];
        if (p->flying[i].prompts != Py_None)
            return PyObject_Size(PyTuple_GET_ITEM(p->flying[i].prompts, 3)) > 0 ? 0 : -1;
        if (lane->size < p->flying[i].decoding) return 0;
        Int left = part(item(lane->ends, 0), 0) - lane->steps;
        count = left < count ? left : count;
    }
    if (count < 1) return 0;
    for (Int i = 0; i < p->lanes_count; i++) size += p->lanes[i].size;
    if ((double)((count + r->page) * size) > room) {
        Int within = steps_within_lanes(p, size, room);
        count = within < count ? within : count;
    }
    if (!waiting && PyObject_Size(r->inbox) > 0 && (Int)PyDict_GET_SIZE(r->running) < r->slots) {
        double next = head_time(r->inbox);
        if (next < *bound) *bound = next;
    }
    return count;
}

static int moved_on(const double *now, const double *then, Py_ssize_t count, double period) { /* _steady */
    for (Py_ssize_t i = 0; i < count; i++)
        if (!(fabs(now[i] - then[i] - period) <= 1e-9 * period)) return 0;
    return 1;
}

static int cycles_made(Pipe *p, Int repeats, const double *was, const double *now) {
    for (Int i = 0; i < p->count; i++) {
        turn_to(p, p->flying[i].lane);
        if (repeats == 1 ? make_tokens(p, now[i]) : make_runs(p, was[i], repeats, now[i])) return -1;
    }
    return 0;
}

/* FlowShop.cycles: the batches go round; how often, with when each is back. passages: seconds of each on all stations.
   times: of each batch that it is back, and when each station is free, now and a cycle before. */
static Int go_round(Pipe *p, const double *passages, double *times, Int count, double bound) {
    Py_ssize_t stations = p->stations, all = (Py_ssize_t)p->count + stations;
    double *back = times, *free_at = times + p->count, *was = times + all;
    Int done = 0;
    while (count > 0) {
        double start = 0.0;
        memcpy(was, times, (size_t)all * sizeof(double));
        for (Int i = 0; i < p->count; i++) {
            const double *seconds = passages + i * stations;
            start = back[i] > free_at[0] ? back[i] : free_at[0];
            back[i] = pass_stations(free_at, stations, back[i], seconds);
        }
        if (start >= bound) {
            memcpy(times, was, (size_t)all * sizeof(double));
            return done;
        }
        double period = back[0] - was[0];
        if (cycles_made(p, 1, was, back)) return -1;
        done++;
        if (!--count) return done;
        int on = start + (double)count * period < bound;
        Int repeats = on ? count : whole_up((bound - start) / period) - 1;
        if (repeats > 0 && moved_on(times, was, all, period)) {
            memcpy(was, times, (size_t)all * sizeof(double));
            for (Py_ssize_t i = 0; i < all; i++) times[i] += (double)repeats * period;
            if (cycles_made(p, repeats, was, back)) return -1;
            count -= repeats;
            done += repeats;
        }
    }
    return done;
}

/* _run: cycles of batches that stay as they are; 0 where there is not even one. */
static int run_cycles(Pipe *p, double until) {
    Plain *r = &p->r;
    double bound = until, longest = 0.0, *passages = p->work, *times = p->work + p->lanes_count * p->stations;
    Int count = alike(p, &bound), most = 0;
    if (count < 0) return in_python(p, p->r.replica, "_run", &until);
    double first = p->flying[0].back > r->clock ? p->flying[0].back : r->clock;
    if (count < 1 || first >= bound) return 0;
    for (Int i = 0; bound < INFINITY && i < p->count; i++) {
        Lane *lane = &p->lanes[p->flying[i].lane];
        double mean = lane->context / (double)lane->size;
        find_line(r, mean);
        double seconds = decode_takes(r, lane->size, mean);
        longest = seconds > longest ? seconds : longest;
    }
    if (bound < INFINITY) {
        most = whole_up((bound - first) / longest);
        count = most < count ? most : count;
    }
    double later = (double)(count - 1) / 2, host = -INFINITY;
    for (Int i = 0; i < p->count; i++) {
        Lane *lane = &p->lanes[p->flying[i].lane];
        double *to = passages + i * p->stations;
        if (pass_takes(r, lane->size, lane->context / (double)lane->size + later, to)) return -1;
        host = to[0] > host ? to[0] : host;
        times[i] = p->flying[i].back;
    }
    if (p->count < p->lanes_count) {
        bound -= host;
        if (first >= bound) return 0;
    }
    if (count_time(p, first)) return -1;
    memcpy(times + p->count, p->free, (size_t)p->stations * sizeof(double));
    Int done = go_round(p, passages, times, count, bound);
    if (done <= 0) return (int)done;
    memcpy(p->free, times + p->count, (size_t)p->stations * sizeof(double));
    for (Int i = 0; i < p->count; i++) p->flying[i].back = times[i];
    turn_to(p, p->flying[p->count - 1].lane);
    r->clock = p->free[0];
    r->previous = r->clock - passages[(p->count - 1) * p->stations];
    p->sent = done * p->count - 1;
    if (count_time(p, r->previous)) return -1;
    p->sent = 1;
    return 1;
}

static int compose_next(Pipe *p) { /* _send, and what is waited for then */
    int went = compose(p);
    p->tried = !went || p->count == p->lanes_count;
    p->waits = p->count && (p->tried || p->flying[0].back <= p->r.clock);
    return went < 0 ? -1 : 0;
}

/* Pipeline.step where no batch is in flight: 0 where nothing begins before `until`. */
static int begin(Pipe *p, double until) {
    Plain *r = &p->r;
    int busy = r->cut >= 0 || PyObject_Size(r->waiting) > 0;
    keep_lane(p);
    for (Int i = 0; i < p->lanes_count; i++) busy = busy || p->lanes[i].size;
    if (!busy && unseen(r)) return in_python(p, r->replica, "step", &until);
    if (busy) {
        if (r->clock >= until) return 0;
        if (compose_next(p)) return -1;
        if (p->count || !PyObject_Size(r->waiting) || PyDict_GET_SIZE(r->running)) return 1;
        double now = r->clock;
        return in_python(p, p->pipeline_ranks, "refuse_first", &now) < 0 ? -1 : 1;
    }
    double start = PyObject_Size(r->inbox) > 0 ? head_time(r->inbox) : INFINITY;
    if (r->clock > start) start = r->clock;
    if (start >= until) return 0;
    r->clock = r->previous = p->metered = start;
    r->used = r->context = 0.0;
    for (Int i = 0; i < p->lanes_count; i++) p->lanes[i].context = 0.0;
    return arrive(r, start) ? -1 : 1;
}

static int pipe_on(Pipe *p, double until) { /* PlainPipeline.advance */
    Plain *r = &p->r;
    while (!r->pause) {
        int went = 0;
        if (!p->count) {
            went = begin(p, until);
            if (went <= 0) return went;
        } else if (p->waits) {
            if (r->clock >= until || p->flying[0].back >= until) return 0;
            if (p->flying[0].prompts == Py_None) {
                went = run_cycles(p, until);
                if (!went) went = again(p);
            }
            if (went < 0 || (!went && take_back(p))) return -1;
        } else {
            if (r->clock >= until) return 0;
            if (compose_next(p)) return -1;
        }
        if (PyErr_Occurred()) return -1;
    }
    return 0;
}

static PyObject *pipe_advance(Pipe *p, PyObject *until) {
    double time = number(until);
    if (PyErr_Occurred() || load_pipe(p) || pipe_on(p, time) || store_pipe(p)) return NULL;
    Py_RETURN_NONE;
}

static int pipe_init(Pipe *p, PyObject *args, PyObject *kwargs) {
    PyObject *lanes = NULL;
    if (p->r.replica) return 0;
    if (plain_init(&p->r, args, kwargs) || kept(&p->pipeline_ranks, p->r.replica, NAME(ranks)) ||
        kept(&p->shop, p->r.replica, NAME(shop)) || kept(&lanes, p->r.scheduler, NAME(lanes)))
        return -1;
    Int count = (Int)PyList_GET_SIZE(lanes);
    p->stations = p->r.prices->stages + 1;
    p->lanes = PyMem_Calloc((size_t)count, sizeof(Lane));
    p->flying = PyMem_Calloc((size_t)count, sizeof(Flight));
    p->idle = PyMem_Calloc((size_t)count + 1, sizeof(Int));
    p->free = PyMem_Calloc((size_t)p->stations, sizeof(double));
    p->work = PyMem_Calloc((size_t)((count + 2) * p->stations + 2 * count), sizeof(double));
    int failed = !p->lanes || !p->flying || !p->idle || !p->free || !p->work;
    if (failed) PyErr_NoMemory();
    else p->lanes_count = count;
    for (Int i = 0; i < p->lanes_count; i++) p->lanes[i].decodes = Py_NewRef(item(lanes, (Py_ssize_t)i));
    Py_DECREF(lanes);
    return failed ? -1 : 0;
}

static int pipe_traverse(Pipe *p, visitproc visit, void *arg) {
    Py_VISIT(p->pipeline_ranks);
    Py_VISIT(p->shop);
    for (Int i = 0; i < p->lanes_count; i++) {
        Lane *lane = &p->lanes[i];
        Py_VISIT(lane->decodes);
        Py_VISIT(lane->ends);
        Py_VISIT(lane->phases);
        Py_VISIT(lane->entered);
        Py_VISIT(lane->joined);
        Py_VISIT(p->flying[i].loads);
    }
    return plain_traverse(&p->r, visit, arg);
}

static int pipe_clear(Pipe *p) {
    Py_CLEAR(p->pipeline_ranks);
    Py_CLEAR(p->shop);
    for (Int i = 0; i < p->lanes_count; i++) {
        Lane *lane = &p->lanes[i];
        Py_CLEAR(lane->decodes);
        Py_CLEAR(lane->ends);
        Py_CLEAR(lane->phases);
        Py_CLEAR(lane->entered);
        Py_CLEAR(lane->joined);
        Py_CLEAR(p->flying[i].loads);
    }
    return plain_clear(&p->r);
}

static void pipe_dealloc(Pipe *p) {
    PyObject_GC_UnTrack(p);
    pipe_clear(p);
    void *parts[] = {p->lanes, p->flying, p->idle, p->free, p->work};
    for (int i = 0; i < 5; i++) PyMem_Free(parts[i]);
    plain_dealloc(&p->r);
}

static PyMethodDef pipe_methods[] = {
    {"advance", (PyCFunction)pipe_advance, METH_O, "Make every step that starts before a time, up to a pause."},
    {NULL, NULL, 0, NULL}};

static PyType_Slot pipe_slots[] = {{Py_tp_traverse, pipe_traverse}, {Py_tp_clear, pipe_clear},
                                   {Py_tp_dealloc, pipe_dealloc},   {Py_tp_init, pipe_init},
                                   {Py_tp_methods, pipe_methods},   {0, NULL}};

static PyType_Spec pipe_spec = {"inferplan.serving.plain_native.Pipe", sizeof(Pipe), 0,
                                Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, pipe_slots};

/* --- the module --- */

static PyObject *found_in(const char *module, const char *name) {
    PyObject *from = PyImport_ImportModule(module);
    PyObject *found = from ? PyObject_GetAttrString(from, name) : NULL;
    Py_XDECREF(from);
    return found;
}

static int whole_in(const char *module, const char *name, Int *to) {
    PyObject *found = found_in(module, name);
    if (!found) return -1;
    *to = PyLong_AsLongLong(found);
    Py_DECREF(found);
    return PyErr_Occurred() ? -1 : 0;
}

static int import_all(void) {
    const char *clients = "inferplan.serving.clients";
    tokens_of[FIRST] = found_in(clients, "FIRST");
    tokens_of[LAST] = found_in(clients, "LAST");
    tokens_of[HANDOFF] = found_in(clients, "HANDOFF");
    nobody = found_in(clients, "nobody");
    budget_reason = PyUnicode_InternFromString("budget");
    cache_reason = PyUnicode_InternFromString("cache");
    slots_reason = PyUnicode_InternFromString("slots");
    front_end = PyUnicode_InternFromString("front end");
    heappop = found_in("heapq", "heappop");
    batch_of = found_in("inferplan.serving.ranks", "Batch");
    rank_load = found_in("inferplan.serving.ranks", "RankLoad");
    chunk_of = found_in("inferplan.serving.step_times", "Chunk");
    PyObject *counts = found_in("inferplan.serving.step_times", "_PROMPTS");
    if (!counts || !heappop || !batch_of || !rank_load || !chunk_of ||
        whole_in("inferplan.work.step", "WIDE", &wide_from) ||
        whole_in("inferplan.serving.records", "FINISHED", &finished_code))
        return -1;
    prompt_counts_size = (int)PyTuple_GET_SIZE(counts);
    for (int i = 0; i < prompt_counts_size && i < 16; i++) prompt_counts[i] = number(PyTuple_GET_ITEM(counts, i));
    Py_DECREF(counts);
    return PyErr_Occurred() || prompt_counts_size > 16 ? -1 : 0;
}

static int fill_names(void) {
    static const char *texts[] = {
#define X(name) #name,
        NAMES(X)
#undef X
    };
    for (int i = 0; i < N_NAMES; i++)
        if (!(names[i] = PyUnicode_InternFromString(texts[i]))) return -1;
    return 0;
}

static PyMethodDef functions[] = {
    {"serve", serve, METH_VARARGS, "Run replicas behind a router."},
    {NULL, NULL, 0, NULL}};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "plain_native", NULL, -1, functions, NULL, NULL, NULL,
                                        NULL};

PyMODINIT_FUNC PyInit_plain_native(void) {
    PyObject *module = PyModule_Create(&definition), *pipes = PyType_FromSpec(&pipe_spec);
    prices_type = (PyTypeObject *)PyType_FromSpec(&prices_spec);
    if (!module || !pipes || !prices_type || fill_names() || import_all() ||
        !(plain_type = (PyTypeObject *)PyType_FromSpec(&plain_spec)) ||
        PyModule_AddObjectRef(module, "Plain", (PyObject *)plain_type) ||
        PyModule_AddObjectRef(module, "Pipe", pipes)) {
        Py_CLEAR(module);
    }
    Py_XDECREF(pipes);
    return module;
}
