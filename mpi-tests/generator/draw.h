/* A program from a seed. */
#ifndef GENERATOR_DRAW_H
#define GENERATOR_DRAW_H
#include "alphabet.h"

#define MOST_STEPS 256

struct drawn {
	uint64_t seed;
	struct manner manner;
	size_t length;
	struct step steps[MOST_STEPS];
};

/* splitmix64 */
static uint64_t draw_state;
static uint64_t draw(uint64_t below)
{
	uint64_t z = draw_state += 0x9e3779b97f4a7c15;
	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
	z = (z ^ z >> 27) * 0x94d049bb133111eb;
	return (z ^ z >> 31) % below;
}

static enum how how_of(const struct step *step)
{
	switch (letters[step->operation].are) {
	case IN_A_WAY: return (enum how)step->variant;
	case IN_A_WAY_A_PART: return HOW(step->variant);
	default: return LIBC;
	}
}

/*
 * Whether the book says that this goes unnoticed (docs/src/hooks.md, "What cannot be seen, and what is
 * done then"). Drawn with `--exceptions` alone.
 */
static int is_exception(const struct step *step)
{
	switch (step->operation) {
	/* Truncation of a privately mapped file by O_TRUNC, or by another process. */
	case OP_truncate_file: return step->variant == 3 || step->variant == 4;
	/* mremap of huge pages by a length that is none of theirs. */
	case OP_odd_huge_move: return 1;
	/* SHM_REMAP by a raw system call. */
	case OP_attach_over: return step->variant == 2;
	default: return 0;
	}
}

/* The program that trusts shared memory vouches that nothing past libc changes it. */
static int is_against_trust(const struct step *step)
{
	enum how how = how_of(step);
	if (how != LIBC && how != NUMBER)
		return 1;
	return (step->operation == OP_truncate_file && (step->variant == 2 || step->variant == 4 || step->variant == 6)) ||
	       (step->operation == OP_attach_over && step->variant == 2) || (step->operation == OP_advise && step->variant == 7);
}

struct choice {
	int exceptions;
	/* Letters that are left out, whole or by their variant. */
	struct {
		enum operation operation;
		int variant;
	} without[64];
	size_t withouts;
	unsigned without_ways; /* a bit for each */
	int without_busy;
};

static int is_allowed(const struct choice *choice, const struct manner *how, const struct step *step)
{
	for (size_t at = 0; at < choice->withouts; at++) {
		int which = letters[step->operation].are ? (int)how_of(step) : (int)step->variant;
		if (choice->without[at].operation == step->operation &&
		    (choice->without[at].variant < 0 || choice->without[at].variant == which))
			return 0;
	}
	if (letters[step->operation].are && choice->without_ways & 1U << how_of(step))
		return 0;
	/* Another slot's registration may have grown over a page that is dropped by a raw system call. */
	if (how->limits & 2 && is_against_trust(step))
		return 0;
	return (choice->exceptions || !is_exception(step)) && !(how->trust && is_against_trust(step));
}

static void add(struct drawn *drawn, const struct choice *choice, struct step step)
{
	if (drawn->length < MOST_STEPS && is_allowed(choice, &drawn->manner, &step))
		drawn->steps[drawn->length++] = step;
}

static unsigned draw_variant(enum operation operation, const enum how hows[2])
{
	enum how how = hows[draw(2)];
	switch (letters[operation].are) {
	case IN_A_WAY: return how;
	case IN_A_WAY_A_PART: return how * PARTS + (draw(2) ? 0 : (unsigned)draw(PARTS));
	default: return (unsigned)draw(letters[operation].variants);
	}
}

/*
 * Each program has few letters and two ways, so that one letter does not hide what another leads to: where
 * an object makes system calls itself, the kernel tells of every change.
 */
static void draw_program(struct drawn *drawn, const struct choice *choice, uint64_t seed)
{
	static const enum operation maps[] = {OP_map_private, OP_map_private, OP_map_private, OP_map_private, OP_map_private,
					      OP_map_shared,  OP_map_file,    OP_map_file,    OP_map_huge,    OP_attach,
					      OP_map_object,  OP_allocate};
	/* Those that the book excepts stand last. */
	static const enum how ways[] = {LIBC, NUMBER, OBJECT, OBJECT, RING_FD, RING_CLOSED, WIDE, TWO, RING_HIDDEN};
	draw_state = seed * 0x2545f4914f6cdd1d;
	*drawn = (struct drawn){.seed = seed};
	drawn->manner.ordered = draw(5) < 2;
	size_t length = draw(2) ? 4 + draw(36) : 1 + draw(8);
	drawn->manner.rounds = drawn->manner.ordered ? 1 + (unsigned)draw(2) : draw(2) ? 1 + (unsigned)draw(8) : 1000;
	drawn->manner.trust = draw(6) == 0;
	drawn->manner.busy = draw(12) || choice->without_busy ? 0 : 1 + (unsigned)draw(3);
	drawn->manner.limits = draw(5) ? 0 : 1 + (unsigned)draw(3);
	unsigned of_ways = choice->exceptions ? sizeof ways / sizeof *ways : 6;
	enum how hows[2] = {ways[draw(of_ways)], draw(2) ? LIBC : ways[draw(of_ways)]};
	enum operation chosen[8];
	unsigned count = 1 + (unsigned)draw(7), used = 1 + (unsigned)draw(3), of_threads = 1 + (unsigned)draw(THREADS);
	if (!drawn->manner.ordered && of_threads == 1)
		of_threads = 2;
	for (unsigned at = 0; at < count; at++)
		chosen[at] = (enum operation)draw(OPERATIONS);
	if (hows[0] == OBJECT || hows[1] == OBJECT || draw(6) == 0)
		add(drawn, choice, (struct step){0, OP_load, 0, 0});
	if (hows[0] == TWO || hows[1] == TWO)
		add(drawn, choice, (struct step){0, OP_load, 0, 1 + (unsigned)draw(2)});
	/* Threads that wait for each other's slots race less. */
	int own_slots = !drawn->manner.ordered && draw(2);
	if (own_slots)
		used = of_threads;
	for (unsigned slot = 0; slot < used; slot++) {
		enum operation map = maps[draw(sizeof maps / sizeof *maps)];
		unsigned thread = own_slots ? slot : (unsigned)draw(of_threads);
		add(drawn, choice, (struct step){thread, map, slot, draw_variant(map, hows)});
	}
	for (; length > 0; length--) {
		enum operation operation = draw(5) < 2 ? OP_send : chosen[draw(count)];
		unsigned thread = (unsigned)draw(of_threads), slot = own_slots ? thread : (unsigned)draw(used);
		add(drawn, choice, (struct step){thread, operation, slot, draw_variant(operation, hows)});
	}
	for (unsigned slot = 0; slot < used; slot++)
		add(drawn, choice, (struct step){own_slots ? slot : (unsigned)draw(of_threads), OP_send, slot, 0});
}
#endif
