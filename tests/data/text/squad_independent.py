#!/usr/bin/env python3
"""Answers and scores of SQuAD 1.1 without any of Millrace's code, to judge it by.

    squad_independent.py QUESTIONS ANSWERS

QUESTIONS is JSON: {"max_answer", "questions": [{"id", "context", "answers", "windows": [{"context_at", "offsets",
"starts", "ends"}]}]}, with the logits of each window's tokens and, for those of the context, the bytes they stand
for. The search for the best span follows postprocess_qa_predictions of Hugging Face's run_qa, the figures follow the
official evaluate-v1.1.py. Writes {"predictions", "exact_match", "f1"} to ANSWERS.
"""
import collections
import json
import re
import string
import sys

N_BEST = 20


# --- utils_qa.postprocess_qa_predictions, without null answers ---------------------------------------------------


def best_indexes(logits):
    # np.argsort(logits)[-1 : -n_best_size - 1 : -1]; of equals the first.
    return sorted(range(len(logits)), key=lambda i: -logits[i])[:N_BEST]


def predict(question, max_answer):
    context = question["context"].encode()
    predictions = []
    for window in question["windows"]:
        tokens = len(window["starts"])
        offsets = [None] * window["context_at"] + window["offsets"]
        offsets += [None] * (tokens - len(offsets))
        for start in best_indexes(window["starts"]):
            for end in best_indexes(window["ends"]):
                if offsets[start] is None or offsets[end] is None:
                    continue
                if end < start or end - start + 1 > max_answer:
                    continue
                predictions.append((window["starts"][start] + window["ends"][end], offsets[start][0], offsets[end][1]))
    predictions.sort(key=lambda prediction: prediction[0], reverse=True)
    if not predictions:
        return ""
    return context[predictions[0][1] : predictions[0][2]].decode()


# --- evaluate-v1.1.py --------------------------------------------------------------------------------------------


def normalize_answer(s):
    def remove_articles(text):
        return re.sub(r"\b(a|an|the)\b", " ", text)

    def white_space_fix(text):
        return " ".join(text.split())

    def remove_punc(text):
        exclude = set(string.punctuation)
        return "".join(ch for ch in text if ch not in exclude)

    return white_space_fix(remove_articles(remove_punc(s.lower())))


def f1_score(prediction, ground_truth):
    prediction_tokens = normalize_answer(prediction).split()
    ground_truth_tokens = normalize_answer(ground_truth).split()
    common = collections.Counter(prediction_tokens) & collections.Counter(ground_truth_tokens)
    num_same = sum(common.values())
    if num_same == 0:
        return 0
    precision = 1.0 * num_same / len(prediction_tokens)
    recall = 1.0 * num_same / len(ground_truth_tokens)
    return (2 * precision * recall) / (precision + recall)


def exact_match_score(prediction, ground_truth):
    return normalize_answer(prediction) == normalize_answer(ground_truth)


def main():
    questions_path, answers_path = sys.argv[1:]
    with open(questions_path, encoding="utf-8") as file:
        asked = json.load(file)
    predictions, exact, f1 = {}, 0, 0
    for question in asked["questions"]:
        text = predictions[question["id"]] = predict(question, asked["max_answer"])
        exact += max(exact_match_score(text, truth) for truth in question["answers"])
        f1 += max(f1_score(text, truth) for truth in question["answers"])
    count = len(asked["questions"])
    with open(answers_path, "w", encoding="utf-8") as file:
        json.dump({"predictions": predictions, "exact_match": 100.0 * exact / count, "f1": 100.0 * f1 / count}, file)


main()
