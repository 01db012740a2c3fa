// Command podsecurity reads manifests, and prints the strictest Pod Security Standard that each pod meets, by the evaluator of Kubernetes.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"os"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
)

type workload struct {
	Metadata metav1.ObjectMeta
	Spec     struct {
		// Of Deployment and StatefulSet.
		Template corev1.PodTemplateSpec
		// Of SandboxTemplate.
		PodTemplate corev1.PodTemplateSpec
	}
}

func main() {
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		log.Fatal(err)
	}

	reader := yaml.NewYAMLOrJSONDecoder(bufio.NewReader(os.Stdin), 4096)
	for {
		var document json.RawMessage
		if err := reader.Decode(&document); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			log.Fatal(err)
		}

		var kind metav1.TypeMeta
		if err := json.Unmarshal(document, &kind); err != nil {
			log.Fatal(err)
		}
		switch kind.Kind {
		case "Deployment", "StatefulSet", "SandboxTemplate":
		default:
			continue
		}

		var found workload
		if err := json.Unmarshal(document, &found); err != nil {
			log.Fatal(err)
		}
		pod := found.Spec.Template
		if kind.Kind == "SandboxTemplate" {
			pod = found.Spec.PodTemplate
		}
		fmt.Println(found.Metadata.Name, strictest(evaluator, &pod))
	}
}

func strictest(evaluator policy.Evaluator, pod *corev1.PodTemplateSpec) api.Level {
	for _, level := range []api.Level{api.LevelRestricted, api.LevelBaseline} {
		version := api.LevelVersion{Level: level, Version: api.LatestVersion()}
		results := evaluator.EvaluatePod(version, &pod.ObjectMeta, &pod.Spec)
		if policy.AggregateCheckResults(results).Allowed {
			return level
		}
	}
	return api.LevelPrivileged
}
